//! `holdfast server metrics`: prints a server's statistics in the text format of Prometheus, or serves them
//! over HTTP, together with the liveness and readiness checks of supervisors. It is a process of its own, so
//! that the one with the key and the data parses no HTTP.

use crate::args::ServerMetrics;
use crate::listening;
use crate::output::line;
use holdfast_crypto::Digest;
use holdfast_daemon::logging;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_http_server::{HttpReply, HttpRequest, HttpServer, Limits, Method, PLAIN, StatusCode};
use holdfast_server::BucketStatus;
use holdfast_server::control::{self, OrderStatus, Outcome as Report, Statistics, Task};
use holdfast_server::witnessing::LogStatus;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The type of Prometheus' text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long the running server may take to return its statistics.
const PATIENCE: Duration = Duration::from_secs(10);

/// `holdfast server metrics`
pub fn run(arguments: &ServerMetrics) -> Outcome {
    let Some(listen) = &arguments.listen else {
        return line(exposition(&arguments.data).trim_end());
    };
    logging::to_stderr();
    let address = listening::resolve(listen)?;
    let failed = |error: std::io::Error| Failure::new(Exit::Unavailable, format!("{address}: {error}"));
    let site = HttpServer::open(address, Limits::SMALL).map_err(failed)?;
    let at = site.local_address();
    let says = format!("figures of {} are at http://{at}/metrics", arguments.data.display());
    let data = arguments.data.clone();
    site.run_plain(0, move |request| answer(&data, &request), listening::announced(says)).map_err(failed)
}

fn answer(data: &Path, request: &HttpRequest) -> HttpReply {
    let status = |is_well: bool| if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match (&request.method, request.path.as_str()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            HttpReply { status: StatusCode::OK, content_type: EXPOSITION, text: exposition(data) }
        }
        (&Method::GET | &Method::HEAD, "/healthz") => match figures(data) {
            Ok(_) => HttpReply::plain(StatusCode::OK, "ok\n"),
            Err(why) => HttpReply::plain(status(false), format!("{why}\n")),
        },
        (&Method::GET | &Method::HEAD, "/readyz") => {
            let troubles = figures(data).map_or_else(|why| vec![why], |figures| troubles(&figures));
            match troubles.is_empty() {
                true => HttpReply::plain(StatusCode::OK, "ok\n"),
                false => HttpReply::plain(status(false), format!("{}\n", troubles.join("\n"))),
            }
        }
        (&Method::GET | &Method::HEAD, "/") => HttpReply {
            status: StatusCode::OK,
            content_type: PLAIN,
            text: "/metrics /healthz /readyz\n".to_owned(),
        },
        (_, "/" | "/metrics" | "/healthz" | "/readyz") => {
            HttpReply::plain(StatusCode::METHOD_NOT_ALLOWED, "")
        }
        _ => HttpReply::plain(StatusCode::NOT_FOUND, ""),
    }
}

/// The statistics of the running server; the error is in words.
fn figures(data: &Path) -> Result<Statistics, String> {
    match control::ask(data, &Task::Statistics, PATIENCE) {
        Ok(Some(Report::Statistics(figures))) => Ok(figures),
        Ok(Some(_)) => Err("the running server is of another version".to_owned()),
        Ok(None) => Err(format!("no server runs on {}", data.display())),
        Err(error) => Err(error.to_string()),
    }
}

/// The reasons why not everything is served.
fn troubles(figures: &Statistics) -> Vec<String> {
    let unserved = figures.unserved.iter().map(|(id, why)| format!("{id} is not served: {why}"));
    let blocks = figures.block_store.as_ref().filter(|store| !store.reached);
    let away = blocks.map(|store| format!("the block store {} cannot be reached", store.address));
    let order = figures.order.as_ref().filter(|order| !order.reached);
    let lost = order.map(|order| format!("the order at {} cannot be reached", order.place));
    unserved.chain(away).chain(lost).collect()
}

/// A text in Prometheus' format that is being written.
struct Exposition(String);

impl Exposition {
    /// Writes a metric with its values, one for each set of labels.
    fn put(&mut self, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.put(name, "gauge", help, &[(String::new(), value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.put(name, "counter", help, &[(String::new(), value as f64)]);
    }
}

/// A label's value, with special characters escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn of_file_system(id: &Digest) -> String {
    format!("{{file_system=\"{id}\"}}")
}

fn exposition(data: &Path) -> String {
    let begun = Instant::now();
    let figures = figures(data);
    let mut text = Exposition(String::new());
    let took = begun.elapsed().as_secs_f64();
    text.gauge("holdfast_up", "1 while the server answers.", f64::from(u8::from(figures.is_ok())));
    text.gauge("holdfast_scrape_seconds", "How long the server took for its figures.", took);
    let Ok(figures) = figures else { return text.0 };
    put_figures(&mut text, &figures);
    if let Ok(Some(Report::Witnesses(logs))) = control::ask(data, &Task::Witnesses, PATIENCE) {
        put_witnesses(&mut text, &logs);
    }
    text.0
}

fn put_figures(text: &mut Exposition, figures: &Statistics) {
    let ready = f64::from(u8::from(troubles(figures).is_empty()));
    text.gauge(
        "holdfast_ready",
        "1 while all file systems are served and their blocks can be reached.",
        ready,
    );
    let served = figures.file_systems.len() as f64;
    text.gauge("holdfast_file_systems", "File systems that are served.", served);
    let unserved = figures.unserved.len() as f64;
    text.gauge(
        "holdfast_file_systems_unserved",
        "File systems that are not, as their order is damaged.",
        unserved,
    );
    let ordered: Vec<(String, f64)> =
        figures.file_systems.iter().map(|(id, size)| (of_file_system(id), *size as f64)).collect();
    text.put("holdfast_log_operations", "counter", "Operations in the log of a file system.", &ordered);
    text.gauge("holdfast_blocks", "Blocks that are stored.", figures.blocks as f64);
    text.gauge("holdfast_block_bytes", "Bytes of those blocks.", figures.block_bytes as f64);
    let deleted = figures.deleted_bytes as f64;
    text.gauge("holdfast_deleted_bytes", "Bytes of deleted content that is still kept.", deleted);
    text.gauge("holdfast_log_bytes", "Bytes of the log on the disk.", figures.log_bytes as f64);
    if let Some(free) = figures.free_bytes {
        text.gauge("holdfast_disk_free_bytes", "Free bytes on the disk.", free as f64);
    }
    let damaged = figures.damaged_blocks as f64;
    text.gauge("holdfast_damaged_blocks", "Blocks known to be damaged.", damaged);
    text.counter("holdfast_commits_total", "Group commits (syncs of the log).", figures.syncs);
    text.counter("holdfast_requests_total", "Requests.", figures.requests);
    text.counter("holdfast_requests_refused_total", "Requests that were refused.", figures.refused);
    text.counter("holdfast_operations_total", "Operations that were committed.", figures.operations);
    text.counter("holdfast_blocks_stored_total", "Blocks that were stored.", figures.blocks_stored);
    text.counter("holdfast_blocks_served_total", "Blocks that were served.", figures.blocks_served);
    text.counter("holdfast_served_bytes_total", "Bytes of blocks that were served.", figures.bytes_served);
    if let Some(store) = &figures.block_store {
        let at = format!("{{address=\"{}\"}}", escaped(&store.address));
        let reached = f64::from(u8::from(store.reached));
        text.put(
            "holdfast_block_store_up",
            "gauge",
            "1 while the block store is reached.",
            &[(at.clone(), reached)],
        );
        let in_doubt = f64::from(u8::from(store.doubt.is_some()));
        let help = "1 while its garbage is not collected, as it may be an older copy.";
        text.put("holdfast_block_store_in_doubt", "gauge", help, &[(at, in_doubt)]);
        if let Some(bucket) = &store.bucket {
            put_bucket(text, bucket);
        }
    }
    if let Some(order) = &figures.order {
        put_order(text, order);
    }
}

fn put_bucket(text: &mut Exposition, bucket: &BucketStatus) {
    let reached = f64::from(u8::from(bucket.trouble.is_none()));
    text.gauge("holdfast_bucket_up", "1 while the bucket is reached and does not refuse.", reached);
    text.gauge("holdfast_bucket_segments", "Segments that the bucket has.", bucket.segments as f64);
    text.gauge("holdfast_bucket_bytes", "Bytes of those segments.", bucket.bytes as f64);
    let waiting = bucket.waiting_bytes as f64;
    text.gauge("holdfast_bucket_waiting_bytes", "Bytes that the bucket does not have yet.", waiting);
    let cached = bucket.cached_bytes as f64;
    text.gauge("holdfast_bucket_cached_bytes", "Bytes of copies on the disk.", cached);
    let kinds = ["put", "get", "head", "list", "delete"];
    let requests = kinds.iter().zip(bucket.requests);
    let requests: Vec<(String, f64)> =
        requests.map(|(kind, count)| (format!("{{kind=\"{kind}\"}}"), count as f64)).collect();
    text.put("holdfast_bucket_requests_total", "counter", "Requests to the object store.", &requests);
}

fn put_order(text: &mut Exposition, order: &OrderStatus) {
    let at = format!("{{place=\"{}\"}}", escaped(&order.place));
    let reached = f64::from(u8::from(order.reached));
    text.put("holdfast_order_up", "gauge", "1 while the order's store is reached.", &[(at, reached)]);
    let servers = order.servers.len() as f64;
    text.gauge("holdfast_order_servers", "Servers that run on the same order, this one included.", servers);
    let active: Vec<(String, f64)> = order
        .active
        .iter()
        .map(|(id, server)| (of_file_system(id), f64::from(u8::from(*server == order.address))))
        .collect();
    text.put("holdfast_active", "gauge", "1 while this server is the active one of a file system.", &active);
    let without = order.active.iter().filter(|(_, server)| server.is_empty()).count() as f64;
    text.gauge("holdfast_file_systems_without_server", "File systems that no server is active for.", without);
}

fn put_witnesses(text: &mut Exposition, logs: &[LogStatus]) {
    let (mut signed, mut at, mut in_trouble) = (Vec::new(), Vec::new(), Vec::new());
    for log in logs {
        for witness in &log.witnesses {
            let labels =
                format!("{{file_system=\"{}\",witness=\"{}\"}}", log.file_system, escaped(&witness.key));
            if let Some((size, time_s)) = witness.newest {
                signed.push((labels.clone(), size as f64));
                at.push((labels.clone(), time_s as f64));
            }
            in_trouble.push((labels, f64::from(u8::from(witness.trouble.is_some()))));
        }
    }
    if in_trouble.is_empty() {
        return;
    }
    text.put(
        "holdfast_witness_log_operations",
        "gauge",
        "Operations that the witness has co-signed.",
        &signed,
    );
    text.put("holdfast_witness_signed_seconds", "gauge", "When it last did, since 1970.", &at);
    text.put("holdfast_witness_failing", "gauge", "1 while the witness does not co-sign.", &in_trouble);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: every metric follows its help and type, names and values have Prometheus' form, and file
    /// systems that are not served are reported.
    #[test]
    fn figures_are_in_prometheus_form() {
        let id = Digest([7; 32]);
        let figures = Statistics {
            file_systems: vec![(id, 12)],
            unserved: vec![(Digest([8; 32]), "damaged".to_owned())],
            blocks: 3,
            free_bytes: Some(1 << 40),
            operations: 12,
            ..Statistics::default()
        };
        let mut text = Exposition(String::new());
        put_figures(&mut text, &figures);
        let mut typed = std::collections::BTreeSet::new();
        for line in text.0.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                typed.insert(rest.split(' ').next().expect("a name").to_owned());
            } else if !line.starts_with("# HELP ") {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                let bare = name.split('{').next().expect("a name");
                assert!(typed.contains(bare), "{line}");
                value.parse::<f64>().unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
        assert!(
            text.0.contains(&format!("holdfast_log_operations{{file_system=\"{id}\"}} 12\n")),
            "{}",
            text.0
        );
        assert!(text.0.contains("holdfast_disk_free_bytes 1099511627776\n"), "{}", text.0);
        assert!(text.0.contains("holdfast_ready 0\n"), "{}", text.0);
        let (here, away, nobody) = (Digest([1; 32]), Digest([2; 32]), Digest([3; 32]));
        let order = OrderStatus {
            place: "etcd://one,two/team".to_owned(),
            address: "a:1".to_owned(),
            reached: false,
            servers: vec!["a:1".to_owned(), "b:1".to_owned()],
            active: vec![(here, "a:1".to_owned()), (away, "b:1".to_owned()), (nobody, String::new())],
        };
        let figures = Statistics { order: Some(Box::new(order)), ..Statistics::default() };
        assert_eq!(troubles(&figures), ["the order at etcd://one,two/team cannot be reached"]);
        let mut text = Exposition(String::new());
        put_figures(&mut text, &figures);
        let bucket = BucketStatus {
            trouble: None,
            segments: 2,
            bytes: 1 << 20,
            waiting_bytes: 5,
            cached_bytes: 6,
            requests: [1, 2, 3, 4, 5],
        };
        put_bucket(&mut text, &bucket);
        for line in [
            "holdfast_order_up{place=\"etcd://one,two/team\"} 0".to_owned(),
            "holdfast_order_servers 2".to_owned(),
            format!("holdfast_active{{file_system=\"{here}\"}} 1"),
            format!("holdfast_active{{file_system=\"{away}\"}} 0"),
            format!("holdfast_active{{file_system=\"{nobody}\"}} 0"),
            "holdfast_file_systems_without_server 1".to_owned(),
            "holdfast_bucket_up 1".to_owned(),
            "holdfast_bucket_waiting_bytes 5".to_owned(),
            "holdfast_bucket_requests_total{kind=\"list\"} 4".to_owned(),
        ] {
            assert!(text.0.lines().any(|one| one == line), "{line}: {}", text.0);
        }
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
