//! The time that small requests take beside bulk on a bad link: a server and a client of the transport alone, one at
//! each end of a test link.

use crate::link::{LinkOptions, Running};
use anyhow::{Context, bail};
use clap::ValueEnum;
use holdfast_content::{BlockKind, Codec, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_link::{Link, SERVER, Side};
use holdfast_protocol::message::{
    AddressedBlock, MESSAGE_BYTES_MAX, Request, Response, StoreHeader, Welcome,
};
use holdfast_rpc::{
    Connection, ConnectionOptions, Connector, Lane, Limits, Listeners, ServerAddress, Service, Session,
    Transport, serve,
};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PORT: u16 = 7440;
/// Every wait has an end; reaching it counts as a stall.
const DEADLINE: Duration = Duration::from_secs(120);
const BLOCK_BYTES: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(100);
/// Large requests under way at once, as a client keeps them.
const AT_ONCE: usize = 4;

#[derive(clap::Args)]
#[command(
    after_help = "Example: holdfast-bench stalls --rate 1.5mbit --up 384kbit --delay 30ms --loss 4% --over quic"
)]
pub struct Options {
    #[command(flatten)]
    link: LinkOptions,
    /// What carries the requests.
    #[arg(long, default_value = "auto")]
    over: Over,
    /// The direction of the bulk transfers.
    #[arg(long, default_value = "up")]
    bulk: AccessPath,
    /// For how long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// (One end of it, in its namespace.)
    #[arg(long, hide = true)]
    end: Option<End>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Over {
    Auto,
    Tcp,
    Quic,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum AccessPath {
    Up,
    Down,
    /// None: small requests alone.
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum End {
    Server,
    Client,
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    match options.end {
        None => both_ends(options),
        Some(End::Server) => server(),
        Some(End::Client) => client(options),
    }
}

fn both_ends(options: &Options) -> anyhow::Result<()> {
    let (up, down) = options.link.conditions();
    let link = Link::make(up, down).context("making the link")?;
    let program = std::env::current_exe()?;
    let start = |side, end| {
        let mut command = link.command(side, &program.to_string_lossy());
        command.args(["stalls", "--end", end, "--over", &name(options.over), "--bulk", &name(options.bulk)]);
        command.args(["--seconds", &options.seconds.to_string()]).stdin(Stdio::null());
        command.spawn().map(Running).context("starting one end")
    };
    let _server = start(Side::Server, "server")?;
    let mut client = start(Side::Client, "client")?;
    let status = options.link.wait(&link, &mut client)?;
    if !status.success() {
        bail!("the client's end failed: {status}");
    }
    let (up, down) = link.counts();
    println!(
        "lost up {} of {}, down {} of {}",
        up.lost + up.dropped,
        up.packets,
        down.lost + down.dropped,
        down.packets
    );
    Ok(())
}

struct Echo;

fn block(bytes: usize) -> StoredBlock {
    StoredBlock { kind: BlockKind::Chunk, codec: Codec::Plain, references: vec![], body: vec![7; bytes] }
}

impl Service for Echo {
    type State = ();

    async fn handle(&self, session: &Arc<Session<()>>, request: Request) -> Response {
        let found = |bytes| {
            let header = StoreHeader { owner: DeviceId(0), stored_ns: 0 };
            Some((header, AddressedBlock { address: Digest::ZERO, block: block(bytes) }))
        };
        match request {
            Request::Hello { .. } => {
                session.admit();
                Response::Hello(Welcome {
                    version: holdfast_protocol::message::PROTOCOL_VERSIONS.1,
                    file_system: None,
                    device: None,
                    abort_after_ms: 0,
                })
            }
            // 32 addresses are a request of a KiB, answered with as much.
            Request::Retrieve(addresses) if addresses.len() == 32 => {
                Response::Blocks((0..32).map(|index| if index == 0 { found(1000) } else { None }).collect())
            }
            Request::Retrieve(addresses) => {
                let advised = session.estimate().map_or(MESSAGE_BYTES_MAX, |link| link.frame_bytes_advised());
                let count = addresses.len().min(advised / BLOCK_BYTES).max(1);
                Response::Blocks(vec![found(BLOCK_BYTES); count])
            }
            _ => Response::Done,
        }
    }
}

fn server() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tcp = tokio::net::TcpListener::bind(("0.0.0.0", PORT)).await?;
        let udp = Some(std::net::UdpSocket::bind(("0.0.0.0", PORT))?);
        let key = SigningKey::from_seed(&[2; 32]);
        let never = std::future::pending();
        serve(Listeners { tcp, udp }, &key, Arc::new(Echo), Limits::default(), never).await?;
        Ok(())
    })
}

fn client(options: &Options) -> anyhow::Result<()> {
    let transport = match options.over {
        Over::Auto => Transport::Auto,
        Over::Tcp => Transport::Tcp,
        Over::Quic => Transport::Quic,
    };
    let address = ServerAddress { host: SERVER.to_owned(), port: PORT };
    let connection = Connector {
        options: ConnectionOptions { transport, ..ConnectionOptions::default() },
        ..Connector::new(SigningKey::from_seed(&[10; 32]), vec![address], None)
    }
    .connect(DEADLINE)?;
    let (moved, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut times = Vec::new();
    let (start, way) = (Instant::now(), options.bulk);
    std::thread::scope(|scope| {
        let workers = if way == AccessPath::None { 0 } else { AT_ONCE };
        for _ in 0..workers {
            scope.spawn(|| bulk(&connection, way, &moved, &ended));
        }
        // The bulk transfers fill the link before anything is timed.
        std::thread::sleep(Duration::from_secs(5));
        let small = Request::Retrieve(vec![Digest::ZERO; 32]);
        while Instant::now() < end {
            let asked = Instant::now();
            let answer = connection.call_on_blocking(Lane::Control, small.clone(), DEADLINE);
            times.push(asked.elapsed());
            if let Err(error) = answer {
                println!("a small request failed: {error}");
            }
            std::thread::sleep(PAUSE);
        }
        ended.store(true, Ordering::Relaxed);
    });
    let seconds = start.elapsed().as_secs_f64();
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_millis();
    let over = if connection.is_over_quic() == Some(true) { "QUIC" } else { "TCP" };
    println!(
        "{} ({over} at the end), bulk {}: {} small requests, ms: p50 {} p99 {} longest {}; bulk {:.0} kbit/s",
        name(options.over),
        name(options.bulk),
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        moved.load(Ordering::Relaxed) as f64 * 8.0 / 1000.0 / seconds
    );
    if let Some(estimate) = connection.estimate() {
        println!("estimate at the end: {estimate:?}");
    }
    Ok(())
}

fn bulk(connection: &Connection, way: AccessPath, moved: &AtomicU64, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let estimate = connection.estimate();
        let result = match way {
            AccessPath::Up => {
                let bytes = estimate.map_or(256 << 10, |link| link.frame_bytes_advised());
                let count = (bytes / BLOCK_BYTES).clamp(1, 16);
                let block = AddressedBlock { address: Digest::ZERO, block: block(BLOCK_BYTES) };
                connection.call_blocking(Request::Store(vec![block; count]), DEADLINE).map(|_| count)
            }
            _ => connection.call_blocking(Request::Retrieve(vec![Digest::ZERO; 64]), DEADLINE).map(|_| 64),
        };
        match result {
            Ok(blocks) => {
                moved.fetch_add((blocks * BLOCK_BYTES) as u64, Ordering::Relaxed);
            }
            Err(error) => println!("bulk failed: {error}"),
        }
    }
}
