//! Credentials of machines, containers and web identities, from real HTTP servers that play the services of Amazon.

use holdfast_tiered::simulated::http::{KEY_ID, Server};
use holdfast_tiered::simulated::{self, Simulated};
use holdfast_tiered::{
    BucketAddress, BucketError, CredentialChain, Credentials, CredentialsError, S3, probe,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// What nobody may ever be shown.
const SECRET: &str = "hidden/secret";
const TOKEN: &str = "hidden-session-token";
const WEB_TOKEN: &str = "hidden.web.token";

/// A request as it came: method and path, headers, body.
#[derive(Clone, Debug)]
struct ServiceRequest {
    line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

/// A status and a body, or silence.
type Reply = Option<(u16, String)>;
type Script = dyn Fn(&ServiceRequest) -> Reply + Send + Sync;

/// An HTTP server that answers by a script, and remembers what it was asked.
struct Service {
    url: String,
    asked: Arc<Mutex<Vec<ServiceRequest>>>,
}

impl Service {
    fn start(script: impl Fn(&ServiceRequest) -> Reply + Send + Sync + 'static) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, script): (Arc<Mutex<Vec<ServiceRequest>>>, Arc<Script>) =
            (Arc::default(), Arc::new(script));
        let of_thread = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (asked, script) = (of_thread.clone(), script.clone());
                std::thread::spawn(move || answer(&stream.unwrap(), &asked, &*script));
            }
        });
        Service { url, asked }
    }

    fn lines(&self) -> Vec<String> {
        self.asked.lock().iter().map(|asked| asked.line.clone()).collect()
    }
}

fn answer(stream: &TcpStream, asked: &Mutex<Vec<ServiceRequest>>, script: &Script) {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() || line.is_empty() {
        return;
    }
    let mut headers = BTreeMap::new();
    for header in reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = header.split_once(':').unwrap();
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let one = ServiceRequest { line, headers, body: String::from_utf8(body).unwrap() };
    let reply = script(&one);
    asked.lock().push(one);
    match reply {
        Some((status, body)) => {
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body.as_bytes()));
        }
        // Until whoever asked gives up.
        None => drop(reader.read_exact(&mut [0])),
    }
}

fn now() -> SystemTime {
    // A whole second, as the services write times.
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000)
}

fn after(seconds: u64) -> SystemTime {
    now() + Duration::from_secs(seconds)
}

fn json(key_id: &str, expires_s: u64) -> String {
    let expires = jiff_text(expires_s);
    format!(
        r#"{{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"{key_id}","SecretAccessKey":"{SECRET}",
            "Token":"{TOKEN}","LastUpdated":"2020-01-01T00:00:00Z","Expiration":"{expires}"}}"#
    )
}

fn jiff_text(after_s: u64) -> String {
    let seconds = after(after_s).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    jiff::Timestamp::from_second(seconds as i64).unwrap().to_string()
}

/// A chain in an environment of these variables, and nothing else.
fn chain(variables: &[(&str, &str)]) -> CredentialChain {
    let mut variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    variables.entry("HOME".to_owned()).or_insert_with(|| "/nonexistent".to_owned());
    CredentialChain::new(move |name| variables.get(name).cloned())
}

/// That, with the metadata service at a URL, which may take as long as a slow machine needs.
fn at_machine(url: &str) -> CredentialChain {
    chain(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", url), ("AWS_METADATA_SERVICE_TIMEOUT", "120")])
}

/// That, with the usual time limit.
fn at_silent_machine(url: &str) -> CredentialChain {
    chain(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)])
}

/// An error in words, in which there must be no secret.
fn words(found: Result<Credentials, CredentialsError>) -> String {
    let error = found.unwrap_err();
    let said = format!("{error} {error:?}");
    assert!(!said.contains("hidden"), "{said}");
    error.to_string()
}

/// A metadata service as it should be, whose role's credentials are what `of_role` says.
fn metadata_service(of_role: impl Fn() -> Reply + Send + Sync + 'static) -> Service {
    Service::start(move |asked| {
        let has_token = asked.headers.get("x-aws-ec2-metadata-token").is_some_and(|token| token == "tok-1");
        match asked.line.as_str() {
            "PUT /latest/api/token" => {
                assert!(asked.headers.contains_key("x-aws-ec2-metadata-token-ttl-seconds"));
                Some((200, "tok-1".to_owned()))
            }
            _ if !has_token => Some((401, String::new())),
            "GET /latest/meta-data/iam/security-credentials/" => Some((200, "my-role\n".to_owned())),
            "GET /latest/meta-data/iam/security-credentials/my-role" => of_role(),
            _ => Some((404, String::new())),
        }
    })
}

/// Proves: a machine's role is asked for with a token; what came is used until shortly before it expires, then asked for
/// again; while a refresh fails the old ones are used, until they expire, and then the failure is told.
#[test]
fn a_machine_has_a_role() {
    let round = Arc::new(AtomicU64::new(1));
    let of_service = round.clone();
    let service = metadata_service(move || match of_service.load(Ordering::Relaxed) {
        0 => Some((500, "away".to_owned())),
        round => Some((200, json(&format!("KEY{round}"), round * 3600))),
    });
    let chain = at_machine(&service.url);
    let found = chain.find(now()).unwrap();
    assert_eq!((found.key_id.as_str(), found.secret.as_str()), ("KEY1", SECRET));
    assert_eq!(found.token.as_ref().map(|token| token.as_str()), Some(TOKEN));
    assert!(found.from.contains("my-role") && !format!("{found:?}").contains("hidden"));
    round.store(2, Ordering::Relaxed);
    assert_eq!(chain.find(after(3200)).unwrap().key_id, "KEY1");
    assert_eq!(service.lines().len(), 3, "one token, one name, one role");
    assert_eq!(chain.find(after(3400)).unwrap().key_id, "KEY2");
    assert_eq!(service.lines().len(), 6);
    round.store(0, Ordering::Relaxed);
    assert_eq!(chain.find(after(7000)).unwrap().key_id, "KEY2", "still good");
    let asked = service.lines().len();
    assert_eq!(chain.find(after(7010)).unwrap().key_id, "KEY2");
    assert_eq!(service.lines().len(), asked, "a refresh that failed is not repeated at once");
    let said = words(chain.find(after(7300)));
    assert!(said.contains("gives no credentials now") && said.contains("500"), "{said}");
    round.store(3, Ordering::Relaxed);
    assert_eq!(chain.find(after(7310)).unwrap().key_id, "KEY3");
}

/// Proves: many threads that want credentials at once cost one request, and while one thread refreshes the others go on
/// with those that are still good.
#[test]
fn one_refresh_at_a_time() {
    let (round, entered) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let (of_service, of_entered, receiver) = (round.clone(), entered.clone(), Mutex::new(receiver));
    let service = metadata_service(move || {
        let round = of_service.load(Ordering::Relaxed);
        of_entered.fetch_add(1, Ordering::Relaxed);
        if round == 2 {
            receiver.lock().recv().unwrap();
        }
        Some((200, json(&format!("KEY{round}"), round * 3600)))
    });
    let chain = at_machine(&service.url);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(chain.find(now()).unwrap().key_id, "KEY1"));
        }
    });
    assert_eq!(entered.load(Ordering::Relaxed), 1);
    round.store(2, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let refreshing = scope.spawn(|| chain.find(after(3400)));
        holdfast_testing::eventually("it is asked", || entered.load(Ordering::Relaxed) == 2);
        for _ in 0..16 {
            assert_eq!(chain.find(after(3400)).unwrap().key_id, "KEY1");
        }
        sender.send(()).unwrap();
        assert_eq!(refreshing.join().unwrap().unwrap().key_id, "KEY2");
    });
}

/// Proves: where no metadata service is, or another one, or it is turned off, there are no credentials, which is no failure;
/// everything that was tried is named with the way out, and it is not looked for again for a while.
#[test]
fn a_machine_without_a_role() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let other_cloud = Service::start(|_| Some((404, "not here".to_owned())));
    let turned_off = Service::start(|_| Some((403, String::new())));
    let silent = Service::start(|_| None);
    let no_role = Service::start(|asked| match asked.line.starts_with("PUT") {
        true => Some((200, "tok-1".to_owned())),
        false => Some((404, String::new())),
    });
    for (url, part) in [
        (format!("http://{closed}"), "is not there"),
        (other_cloud.url.clone(), "status 404"),
        (turned_off.url.clone(), "status 403"),
        (silent.url.clone(), "hop limit"),
        (no_role.url.clone(), "has no role"),
    ] {
        let is_silent = url == silent.url;
        let chain = if is_silent { at_silent_machine(&url) } else { at_machine(&url) };
        let found = chain.find(now());
        assert!(matches!(found, Err(CredentialsError::None { .. })), "{found:?}");
        let said = words(found);
        for part in [
            part,
            "AWS_ACCESS_KEY_ID",
            "/nonexistent/.aws/credentials",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert_eq!(words(chain.find(after(10))), said);
    }
    assert_eq!(other_cloud.lines().len(), 1, "it was looked for once");
    let off = chain(&[
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &other_cloud.url),
    ]);
    assert!(words(off.find(now())).contains("AWS_EC2_METADATA_DISABLED is set"));
    let named = chain(&[("AWS_PROFILE", "team"), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &other_cloud.url)]);
    assert!(words(named.find(now())).contains("profile 'team'"));
    assert_eq!(other_cloud.lines().len(), 1, "who names a profile does not get the machine's role");
}

/// Proves: a service that is there and gives nonsense, nothing in time, too much, or credentials that have expired, is a
/// failure in words without secrets, and not "there are none"; so is a refusal, which is told from it.
#[test]
fn bad_answers_are_failures() {
    let expired = json("KEY", 0);
    for (reply, part) in [
        (Some((200, "<html>hidden</html>".to_owned())), "cannot be understood"),
        (Some((200, json("KEY", 60)[..120].to_owned())), "cannot be understood"),
        (Some((200, r#"{"AccessKeyId":"hidden"}"#.to_owned())), "lacks parts"),
        (Some((200, json("KEY\\r\\nx: y", 60))), "are no credentials"),
        (Some((200, json("KEY", 60).replace("203", "x"))), "when they expire"),
        (Some((200, expired)), "clock"),
        (Some((200, "x".repeat(100_000))), "gives no credentials now"),
        (Some((503, String::new())), "503"),
        (None, "gives no credentials now"),
    ] {
        let is_silent = reply.is_none();
        let service = metadata_service(move || reply.clone());
        let url = &service.url;
        let found = if is_silent { at_silent_machine(url) } else { at_machine(url) }.find(now());
        assert!(matches!(found, Err(CredentialsError::Unavailable { .. })), "{part}: {found:?}");
        let said = words(found);
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let refusing = r#"{"Code":"AssumeRoleUnauthorizedAccess","Message":"EC2 cannot assume the role"}"#;
    let service = metadata_service(|| Some((200, refusing.to_owned())));
    let found = at_machine(&service.url).find(now());
    assert!(matches!(found, Err(CredentialsError::Refused { .. })), "{found:?}");
    assert!(words(found).contains("AssumeRoleUnauthorizedAccess: EC2 cannot assume the role"));
    let odd_role = Service::start(|asked| match asked.line.starts_with("PUT") {
        true => Some((200, "tok-1".to_owned())),
        false => Some((200, "../../latest/user-data".to_owned())),
    });
    assert!(words(at_machine(&odd_role.url).find(now())).contains("which role"));
    assert_eq!(odd_role.lines().len(), 2);
}

/// Proves: a service that is overloaded for a moment is asked again.
#[test]
fn overload_is_waited_for() {
    let count = AtomicU64::new(0);
    let service = metadata_service(move || match count.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Some((503, String::new())),
        _ => Some((200, json("KEY", 3600))),
    });
    assert_eq!(at_machine(&service.url).find(now()).unwrap().key_id, "KEY");
}

/// Proves: a container's credentials come from its service, with the token of the environment or, before it, of a file that
/// is read each time; a refusal is told; an address elsewhere gets no token.
#[test]
fn a_container_has_a_role() {
    let service = Service::start(|asked| match asked.headers.get("authorization").map(String::as_str) {
        Some("Bearer hidden-1") => Some((200, json("ONE", 3600).replace(r#""Code":"Success","#, ""))),
        Some("Bearer hidden-2") => Some((200, json("TWO", 7200))),
        _ => Some((400, r#"{"code":"InvalidToken","message":"no such token"}"#.to_owned())),
    });
    let url = format!("{}/v1/credentials", service.url);
    let full = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str());
    let slow = ("AWS_METADATA_SERVICE_TIMEOUT", "120");
    let by_variable = chain(&[full, slow, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer hidden-2")]);
    assert_eq!(by_variable.find(now()).unwrap().key_id, "TWO");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "Bearer hidden-1\n").unwrap();
    let by_file = chain(&[
        full,
        slow,
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer wrong"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap()),
    ]);
    assert_eq!(by_file.find(now()).unwrap().key_id, "ONE");
    std::fs::write(&file, "Bearer hidden-2\n").unwrap();
    assert_eq!(by_file.find(after(3500)).unwrap().key_id, "TWO");
    assert_eq!(service.lines(), vec!["GET /v1/credentials"; 3]);

    let refused = chain(&[full, slow, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer hidden-3")]).find(now());
    assert!(matches!(refused, Err(CredentialsError::Refused { .. })), "{refused:?}");
    let said = words(refused);
    assert!(said.contains("status 400: InvalidToken: no such token"), "{said}");
    let split = chain(&[full, slow, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hidden\r\nx: y")]).find(now());
    assert!(words(split).contains("cannot be sent"));
    let elsewhere = chain(&[
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.org/creds"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer hidden-1"),
    ]);
    assert!(words(elsewhere.find(now())).contains("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
    let gone = chain(&[full, slow, ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/nonexistent/token")]);
    assert!(words(gone.find(now())).contains("/nonexistent/token"));
}

fn sts_reply(key_id: &str, expires_s: u64) -> String {
    let expires = jiff_text(expires_s);
    format!(
        r#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult>
    <SubjectFromWebIdentityToken>system:serviceaccount:a:b</SubjectFromWebIdentityToken>
    <AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser>
    <Credentials><SessionToken>{TOKEN}</SessionToken><SecretAccessKey>{SECRET}</SecretAccessKey>
      <Expiration>{expires}</Expiration><AccessKeyId>{key_id}</AccessKeyId></Credentials>
  </AssumeRoleWithWebIdentityResult>
  <ResponseMetadata><RequestId>x</RequestId></ResponseMetadata>
</AssumeRoleWithWebIdentityResponse>"#
    )
}

/// Proves: a web identity's token is exchanged for the role's credentials, in the body of a request; it is read again for
/// every exchange; it comes before the container's and the machine's, and after the environment's.
#[test]
fn a_web_identity_has_a_role() {
    let service = Service::start(|asked| {
        let is_renewed = asked.body.contains("renewed");
        Some((200, sts_reply(if is_renewed { "TWO" } else { "ONE" }, if is_renewed { 7200 } else { 3600 })))
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{WEB_TOKEN}\n")).unwrap();
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/a&b"),
        ("AWS_ROLE_SESSION_NAME", "here"),
        ("AWS_ENDPOINT_URL_STS", service.url.as_str()),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/"),
    ];
    let by_token = chain(&variables);
    let found = by_token.find(now()).unwrap();
    assert_eq!((found.key_id.as_str(), found.secret.as_str()), ("ONE", SECRET));
    let asked = service.asked.lock()[0].clone();
    assert_eq!(asked.line, "POST /");
    assert_eq!(
        asked.body,
        "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa%26b\
         &RoleSessionName=here&WebIdentityToken=hidden.web.token"
    );
    std::fs::write(&file, format!("{WEB_TOKEN}.renewed")).unwrap();
    assert_eq!(by_token.find(after(3500)).unwrap().key_id, "TWO");
    let keys = [("AWS_ACCESS_KEY_ID", "MINE"), ("AWS_SECRET_ACCESS_KEY", "x")];
    assert_eq!(chain(&[&variables[..], &keys].concat()).find(now()).unwrap().key_id, "MINE");
    assert_eq!(service.lines().len(), 2);
}

/// Proves: a bucket is opened with the credentials of a container, token and all; while its service is away the bucket is,
/// and says why; where there are no credentials only an operator can help.
#[test]
fn a_bucket_is_opened_by_a_container() {
    const INSIDE: &str = "HOLDFAST_TEST_BUCKET";
    if let Ok(address) = std::env::var(INSIDE) {
        let s3 = S3::new(&address.parse::<BucketAddress>().unwrap());
        match std::env::var("HOLDFAST_TEST_EXPECTED").unwrap().as_str() {
            "opened" => probe(&s3, &[7; 16]).unwrap(),
            "away" => {
                let error = probe(&s3, &[7; 16]).unwrap_err();
                assert!(matches!(error, BucketError::Away { .. }), "{error:?}");
                assert!(error.to_string().contains("container"), "{error}");
            }
            _ => {
                let error = probe(&s3, &[7; 16]).unwrap_err();
                assert!(matches!(error, BucketError::NoCredentials { .. }), "{error:?}");
                assert!(error.needs_operator());
            }
        }
        return;
    }
    let server = Server::start(&Simulated::new(), "bucket", "127.0.0.1:0".parse().unwrap()).unwrap();
    let service = Service::start(|_| {
        let expires = jiff::Timestamp::now() + Duration::from_secs(3600);
        let reply = json(KEY_ID, 3600).replace(SECRET, simulated::http::SECRET);
        Some((200, reply.replace(&jiff_text(3600), &expires.to_string())))
    });
    let away = Service::start(|_| Some((500, String::new())));
    let variable = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    for (expected, variables) in [
        ("opened", vec![(variable, service.url.as_str())]),
        ("away", vec![(variable, away.url.as_str())]),
        ("none", vec![]),
    ] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "credentials::a_bucket_is_opened_by_a_container", "--nocapture"])
            .env_clear()
            .env("HOME", "/nonexistent")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_METADATA_SERVICE_TIMEOUT", "120")
            .env(INSIDE, format!("s3://bucket/p?endpoint=http://{}", server.address()))
            .env("HOLDFAST_TEST_EXPECTED", expected)
            .envs(variables)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("1 passed"), "{expected}: {said}{failed}");
    }
}

/// Proves: what STS refuses is told with its code and the way out; a provider that it cannot reach, or nonsense, is worth
/// asking again; half a configuration is named.
#[test]
fn refused_web_identities_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, WEB_TOKEN).unwrap();
    let file = file.to_str().unwrap();
    let error = |code: &str| {
        format!(
            "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>said it</Message></Error>\
             <RequestId>x</RequestId></ErrorResponse>"
        )
    };
    for (status, body, is_refused, part) in [
        (403, error("AccessDenied"), true, "AccessDenied: said it"),
        (400, error("InvalidIdentityToken"), true, "InvalidIdentityToken"),
        (400, error("ExpiredTokenException"), false, "must renew it"),
        (400, error("IDPCommunicationError"), false, "IDPCommunicationError"),
        (200, "hidden".to_owned(), false, "cannot be understood"),
        (200, sts_reply("ONE", 3600)[..400].to_owned(), false, "cannot be understood"),
        (503, String::new(), false, "503"),
    ] {
        let service = Service::start(move |_| Some((status, body.clone())));
        let found = chain(&[
            ("AWS_WEB_IDENTITY_TOKEN_FILE", file),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/a"),
            ("AWS_ENDPOINT_URL_STS", &service.url),
        ])
        .find(now());
        assert_eq!(matches!(found, Err(CredentialsError::Refused { .. })), is_refused, "{part}: {found:?}");
        assert_eq!(matches!(found, Err(CredentialsError::Unavailable { .. })), !is_refused, "{part}");
        let said = words(found);
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let half = chain(&[("AWS_WEB_IDENTITY_TOKEN_FILE", file)]).find(now());
    assert!(words(half).contains("AWS_ROLE_ARN"));
    let gone = chain(&[
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token"),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/a"),
    ]);
    assert!(words(gone.find(now())).contains("/nonexistent/token"));
}
