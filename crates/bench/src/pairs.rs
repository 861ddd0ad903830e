//! From one release of a tree to the next, file by file, over a slow link: bytes each way.
//!
//! A server and two clients in this process, over the loopback; the link is only said to be slow, so that the means
//! against slow links are used, and no time is measured. The writer has written the old tree, and the reader has read
//! it. Then the writer turns it into the new one, and the reader reads what changed. Counted is everything that the
//! connections carry.

use anyhow::{Context, bail};
use holdfast_client::admin::{Admin, CreateConfig, Home, create};
use holdfast_client::files::{Caller, FileSystem, Ino, MountOptions, OpenFlags, WriteSource};
use holdfast_client::store::{Link, StoreStatus, TransferConfig, TransferMode};
use holdfast_client::{Engine, EngineConfig};
use holdfast_crypto::SigningKey;
use holdfast_rpc::{Address, ServerAddress};
use holdfast_server::{Server, ServerConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// The older tree.
    old: PathBuf,
    /// The newer one.
    new: PathBuf,
    /// How data is moved: full, plain or lbfs.
    #[arg(long, default_value = "full")]
    transfer: TransferMode,
    /// Mbit/s of the link, as the clients are told.
    #[arg(long, default_value_t = 1.5)]
    mbit: f64,
    /// Each tree is one file: its files in order of name, one after the other.
    #[arg(long)]
    as_one_file: bool,
}

const CALLER: Caller = Caller { uid: 1000, gid: 1000, thread: 1 };
const DEADLINE: Duration = Duration::from_secs(120);
const NOW: i64 = 1_700_000_000_000_000_000;

type Tree = BTreeMap<String, Vec<u8>>;

struct Mount {
    files: Arc<FileSystem>,
    engine: Arc<Engine>,
    folder: Ino,
    folders: std::cell::RefCell<BTreeMap<String, Ino>>,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let load = |root: &Path| -> anyhow::Result<Tree> {
        let mut tree = Tree::new();
        read_tree(root, "", &mut tree).with_context(|| root.display().to_string())?;
        match options.as_one_file {
            true => Ok(Tree::from([("all".to_owned(), tree.into_values().flatten().collect())])),
            false => Ok(tree),
        }
    };
    let (old, new) = (load(&options.old)?, load(&options.new)?);
    let directory = tempfile::Builder::new().prefix("holdfast-pairs.").tempdir()?;
    let listen = "127.0.0.1:0".parse()?;
    let server = Server::open(ServerConfig::new(directory.path().join("server"), listen))?;
    let host = ServerAddress { host: "127.0.0.1".into(), port: server.local_address().port() };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || server.run(async { drop(stopped.await) }));
    let result = measure(options, directory.path(), host, &old, &new);
    drop(stop);
    if thread.join().is_err() {
        bail!("the server failed");
    }
    result
}

fn measure(
    options: &Options,
    directory: &Path,
    server: ServerAddress,
    old: &Tree,
    new: &Tree,
) -> anyhow::Result<()> {
    let key = |seed: u8| SigningKey::from_seed(&[seed; 32]);
    let address = create(CreateConfig {
        server,
        others: Vec::new(),
        superuser: key(1).into(),
        name: "pairs".into(),
        superuser_name: "root".into(),
        state_dir: directory.join("state-1"),
        now_ns: NOW,
        deadline: DEADLINE,
    })?;
    let root = Engine::start(EngineConfig::new(address.clone(), key(1), directory.join("state-1")))?;
    let admin = Admin::new(&root)?;
    for seed in [2, 3] {
        admin.add_user(&format!("user{seed}"), Some(("device", key(seed).public())), Home::Make, NOW)?;
    }
    admin.add_group("team", &["user2", "user3"], Home::Make, NOW)?;
    root.stop();
    let rate = (options.mbit * 125_000.0) as u64;
    let link = Link { round_trip: Duration::from_millis(30), up: rate, down: rate };
    let transfer = TransferConfig { mode: options.transfer, link: Some(link) };
    let mount = |seed| Mount::new(directory, &address, key(seed), seed, transfer);
    let (writer, reader) = (mount(2)?, mount(3)?);
    let all: Vec<&String> = old.keys().collect();
    for path in &all {
        writer.put(path, &old[*path])?;
    }
    for path in &all {
        reader.check(path, &old[*path])?;
    }
    let changed: Vec<&String> =
        new.iter().filter(|(path, bytes)| old.get(*path) != Some(bytes)).map(|(path, _)| path).collect();
    let bytes: usize = changed.iter().map(|path| new[*path].len()).sum();
    println!("{} of {} files are new or changed: {} KB", changed.len(), new.len(), bytes / 1000);
    let before = writer.counted();
    for path in &changed {
        writer.put(path, &new[*path])?;
    }
    for path in old.keys().filter(|path| !new.contains_key(*path)) {
        writer.remove(path)?;
    }
    report("written", &before, &writer.counted());
    let before = reader.counted();
    for path in &changed {
        reader.check(path, &new[*path])?;
    }
    report("read", &before, &reader.counted());
    writer.engine.stop();
    reader.engine.stop();
    Ok(())
}

struct Counted {
    sent: u64,
    received: u64,
    operations: u64,
    store: StoreStatus,
}

fn report(what: &str, before: &Counted, after: &Counted) {
    let kb = |after: u64, before: u64| (after - before) as f64 / 1000.0;
    let (from, to) = (&before.store, &after.store);
    println!(
        "{what}: sent {:.1} KB, received {:.1} KB; of these blocks {:.1} and {:.1}; {} operations, {} requests for blocks, \
         {} with blocks, {} questions",
        kb(after.sent, before.sent),
        kb(after.received, before.received),
        kb(to.bytes_sent, from.bytes_sent),
        kb(to.bytes_fetched, from.bytes_fetched),
        after.operations - before.operations,
        to.retrieves - from.retrieves,
        to.stores - from.stores,
        to.transfer.questions - from.transfer.questions,
    );
}

impl Mount {
    fn new(
        directory: &Path,
        address: &Address,
        key: SigningKey,
        seed: u8,
        transfer: TransferConfig,
    ) -> anyhow::Result<Mount> {
        let mut config = EngineConfig::new(address.clone(), key, directory.join(format!("state-{seed}")));
        config.cache_dir = Some(directory.join(format!("cache-{seed}")));
        config.transfer = transfer;
        let engine = Engine::start(config)?;
        let options = MountOptions {
            uid: 1000,
            gid: 1000,
            owners: Default::default(),
            spool_dir: directory.join(format!("spool-{seed}")),
            salvage_dir: directory.join(format!("salvage-{seed}")),
            read_only: false,
        };
        let files = FileSystem::new(engine.clone(), options)?;
        let folder = files.lookup(&CALLER, Ino::ROOT, b"team")?.ino;
        Ok(Mount { files, engine, folder, folders: Default::default() })
    }

    fn counted(&self) -> Counted {
        let status = self.engine.status();
        Counted {
            sent: status.bytes_sent,
            received: status.bytes_received,
            operations: status.operations,
            store: status.store,
        }
    }

    fn folder_of<'p>(&self, path: &'p str, make: bool) -> anyhow::Result<(Ino, &'p str)> {
        let Some((folder, name)) = path.rsplit_once('/') else { return Ok((self.folder, path)) };
        if let Some(ino) = self.folders.borrow().get(folder) {
            return Ok((*ino, name));
        }
        let (parent, own) = self.folder_of(folder, make)?;
        let found = self.files.lookup(&CALLER, parent, own.as_bytes());
        let ino = match found {
            Ok(found) => found.ino,
            Err(_) if make => self.files.mkdir(&CALLER, parent, own.as_bytes(), 0o755)?.ino,
            Err(error) => return Err(error.into()),
        };
        self.folders.borrow_mut().insert(folder.to_owned(), ino);
        Ok((ino, name))
    }

    fn put(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let (folder, name) = self.folder_of(path, true)?;
        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        let (_, opened) = self.files.create(&CALLER, folder, name.as_bytes(), 0o644, flags)?;
        for (number, part) in bytes.chunks(1 << 20).enumerate() {
            self.files.write(opened.handle, (number << 20) as u64, part, WriteSource::Call)?;
        }
        self.files.flush(opened.handle)?;
        self.files.release(opened.handle);
        Ok(())
    }

    fn remove(&self, path: &str) -> anyhow::Result<()> {
        let (folder, name) = self.folder_of(path, false)?;
        Ok(self.files.unlink(&CALLER, folder, name.as_bytes())?)
    }

    fn check(&self, path: &str, expected: &[u8]) -> anyhow::Result<()> {
        let (folder, name) = self.folder_of(path, false)?;
        let found = self.files.lookup(&CALLER, folder, name.as_bytes())?;
        let opened = self.files.open(&CALLER, found.ino, OpenFlags::READ)?;
        let mut at = 0;
        loop {
            let part = self.files.read(opened.handle, at as u64, 1 << 20)?;
            if part.is_empty() {
                break;
            }
            if expected.get(at..at + part.len()) != Some(&part[..]) {
                bail!("{path} reads otherwise than it was written");
            }
            at += part.len();
        }
        self.files.release(opened.handle);
        if at != expected.len() {
            bail!("{path} has {at} bytes, not {}", expected.len());
        }
        Ok(())
    }
}

fn read_tree(folder: &Path, prefix: &str, tree: &mut Tree) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name that is not UTF-8")?;
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read_tree(&entry.path(), &path, tree)?;
        } else if kind.is_file() {
            tree.insert(path, std::fs::read(entry.path())?);
        }
    }
    Ok(())
}
