//! The S3 protocol over real sockets, against the simulated server, which checks signatures.

use holdfast_tiered::simulated::http::Server;
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Bucket, BucketAddress, BucketError, RequestKind, S3, probe};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs this test once more, in a process whose environment names a file with credentials.
fn with_credentials() {
    if std::env::var("AWS_SHARED_CREDENTIALS_FILE").is_ok_and(|file| file.contains("holdfast-s3-test")) {
        return;
    }
    let folder = tempfile::Builder::new().prefix("holdfast-s3-test").tempdir().unwrap();
    let file = folder.path().join("credentials");
    std::fs::write(&file, "[team]\naws_access_key_id=holdfast\naws_secret_access_key=holdfastsecret\n")
        .unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", std::thread::current().name().unwrap(), "--nocapture"])
        .env_remove("AWS_ACCESS_KEY_ID")
        .env("AWS_SHARED_CREDENTIALS_FILE", &file)
        .env("AWS_PROFILE", "team")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn is_inside() -> bool {
    std::env::var("AWS_SHARED_CREDENTIALS_FILE").is_ok_and(|file| file.contains("holdfast-s3-test"))
}

fn served(bucket: &str) -> (Simulated, Server, S3) {
    let objects = Simulated::new();
    let server = Server::start(&objects, "bucket", "127.0.0.1:0".parse().unwrap()).unwrap();
    let address: BucketAddress =
        format!("s3://{bucket}/a/prefix?endpoint=http://{}", server.address()).parse().unwrap();
    let s3 = S3::new(&address);
    (objects, server, s3)
}

/// Proves: objects come back as they were written, whole and in ranges; listings of several pages are whole; what is not
/// there is told from what failed.
#[test]
fn objects_come_back() {
    with_credentials();
    if !is_inside() {
        return;
    }
    let (objects, _server, s3) = served("bucket");
    probe(&s3, &[7; 16]).unwrap();
    assert!(objects.names().is_empty(), "the probe leaves nothing");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    s3.put("one", &bytes).unwrap();
    assert_eq!(s3.get("one", None).unwrap(), bytes);
    assert_eq!(s3.get("one", Some(1_000_000..1_000_010)).unwrap(), bytes[1_000_000..1_000_010]);
    assert_eq!(s3.length("one").unwrap(), 3_000_000);
    s3.put_with("one", &[("cache-control", "max-age=1")], &bytes).unwrap();
    assert_eq!(objects.headers("a/prefix/one"), [("cache-control", "max-age=1".to_owned())]);
    for number in 0..250 {
        s3.put(&format!("many/{number:03}"), b"x").unwrap();
    }
    let listed = s3.list("many/").unwrap();
    assert_eq!((listed.len(), listed[249].name.as_str()), (250, "many/249"));
    assert!(s3.get("two", None).unwrap_err().is_absent() && s3.length("two").unwrap_err().is_absent());
    s3.delete("one").unwrap();
    s3.delete("one").unwrap();
    assert!(s3.get("one", None).unwrap_err().is_absent());
    assert!(objects.names().iter().all(|name| name.starts_with("a/prefix/")));
    assert!(s3.counts().put >= 252 && s3.counts().list >= 4);
}

/// Proves: requests that fail for a moment are made again; what stays away is an error that names the bucket; a bucket that is
/// not there, and clocks that differ, are told as such.
#[test]
fn failures_are_distinguished() {
    with_credentials();
    if !is_inside() {
        return;
    }
    let (objects, server, s3) = served("bucket");
    let count = AtomicU32::new(0);
    objects.with_deliveries(move |_, _| match count.fetch_add(1, Ordering::Relaxed) % 3 {
        2 => Delivery::Good,
        1 => Delivery::Unanswered,
        _ => Delivery::Lost,
    });
    s3.put("one", b"bytes").unwrap();
    assert_eq!(s3.get("one", None).unwrap(), b"bytes");
    objects.with_deliveries(|kind, _| if kind == RequestKind::Get { Delivery::Lost } else { Delivery::Good });
    let error = s3.get("one", None).unwrap_err();
    assert!(
        matches!(&error, BucketError::Away { .. }) && error.to_string().contains("s3://bucket/a/prefix"),
        "{error}"
    );
    objects.without_fates();
    server.set_ahead(3600);
    assert!(matches!(s3.put("one", b""), Err(BucketError::Skew { .. })));
    server.set_ahead(0);
    drop(server);
    assert!(matches!(s3.put("one", b""), Err(BucketError::Away { .. })));
    let (_objects, _server, other) = served("another");
    assert!(matches!(probe(&other, &[1; 16]), Err(BucketError::NoBucket { .. })));
}

/// Proves: a large object is written in parts, each of which is tried again by itself, and is whole; an upload that fails is
/// given up, one that a crash cut off is at the next start, and nobody else's; a store that knows no parts gets it in one piece.
#[test]
fn large_objects_go_in_parts() {
    with_credentials();
    if !is_inside() {
        return;
    }
    let (objects, server, s3) = served("bucket");
    let bytes: Vec<u8> = (0..40_000_001u32).map(|at| (at % 251) as u8).collect();
    server.fail_parts(2);
    s3.put("ID/segment-1", &bytes).unwrap();
    assert_eq!(server.uploads(), (1, 0));
    assert_eq!(s3.get("ID/segment-1", None).unwrap(), bytes);
    s3.put("ID/segment-2", &bytes[..1_000_000]).unwrap();
    assert_eq!(server.uploads(), (1, 0), "a small one goes in one piece");

    server.fail_parts(1_000);
    assert!(matches!(s3.put("ID/segment-3", &bytes), Err(BucketError::Away { .. })));
    assert_eq!(server.uploads(), (2, 0));
    server.fail_parts(0);
    assert!(s3.length("ID/segment-3").unwrap_err().is_absent());

    server.begin_upload("a/prefix/ID/segment-4");
    server.begin_upload("a/prefix/OTHER/segment-4");
    assert_eq!(s3.abandon_uploads("ID/segment-").unwrap(), 1);
    assert_eq!(server.uploads(), (4, 1));

    server.forget_parts();
    s3.put("ID/segment-5", &bytes).unwrap();
    assert_eq!(s3.get("ID/segment-5", None).unwrap(), bytes);
    assert!(objects.names().iter().all(|name| name.starts_with("a/prefix/ID/")));
}

/// Proves: a range of an object is copied at the store, whatever characters names have and however often it fails; what is
/// absent or too short is told, and leaves no upload; of a store that copies nothing that is noticed, and nothing has changed.
#[test]
fn ranges_are_copied() {
    with_credentials();
    if !is_inside() {
        return;
    }
    let (objects, server, s3) = served("bucket");
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    s3.put("ID/segment-1", &bytes).unwrap();
    server.fail_parts(2);
    assert!(s3.copy("ID/segment-1", 7..60_000, "ID/piece-1").unwrap());
    assert_eq!(s3.get("ID/piece-1", None).unwrap(), bytes[7..60_000]);
    assert!(s3.copy("ID/piece-1", 0..1, "ID/piece-2").unwrap());
    assert_eq!(s3.get("ID/piece-2", None).unwrap(), bytes[7..8]);
    s3.put("ID/a name+with=%25 all", &bytes).unwrap();
    assert!(s3.copy("ID/a name+with=%25 all", 0..9, "ID/piece-3").unwrap());
    assert_eq!(s3.get("ID/piece-3", None).unwrap(), bytes[..9]);

    assert!(s3.copy("ID/segment-9", 0..9, "ID/piece-4").unwrap_err().is_absent());
    assert!(s3.copy("ID/segment-1", 99_999..100_001, "ID/piece-4").is_err());
    assert!(s3.length("ID/piece-4").unwrap_err().is_absent());
    assert_eq!(server.uploads().1, 0);

    server.forget_copies();
    let before = objects.names();
    assert!(!s3.copy("ID/segment-1", 0..9, "ID/piece-5").unwrap());
    server.forget_parts();
    assert!(!s3.copy("ID/segment-1", 0..9, "ID/piece-5").unwrap());
    assert_eq!((objects.names(), server.uploads().1), (before, 0));
}
