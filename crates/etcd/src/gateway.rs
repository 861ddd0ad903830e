//! etcd through the JSON gateway that every member has (`/v3/...`, since etcd 3.4).
//!
//! A request goes to the member that answered last; a member that does not answer is skipped. Only a complete
//! answer counts.

use crate::access::{Access, AccessError, Login};
use crate::{
    Compare, EtcdError, Get, Keys, Kv, LeaseId, Pair, Revision, Step, Transaction, TransactionResult,
};
use base64ct::{Base64, Encoding};
use holdfast_http_client::{Authorities, client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, parse_pem};
use zeroize::Zeroizing;

/// How long a member may take for one reply, at first. Waiting longer than an election of a leader usually
/// takes would only delay trying other members.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How often that time is doubled while no answer comes in time. Otherwise a slow member would never answer:
/// a handshake and a log-in cost it much, and again after each attempt that was given up.
const DOUBLINGS_MAX: u32 = 3;
/// Longest reply in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// etcd's plain-text answer to a client with a name in its certificate, once users must log in.
const NAMED_CERTIFICATE: &str = "CommonName of client";
/// TLS errors about a certificate, the member's or ours.
const CERTIFICATES: [&str; 2] = ["invalid peer certificate", "received fatal alert"];
/// Errors of clients that are not let in, and how to correct them.
const WAYS_OUT: [(&str, &str); 6] = [
    (
        NAMED_CERTIFICATE,
        "Where users log in, etcd wants a client's certificate without a common name: make one with a subject such as \
         /O=holdfast, and name it in the file of --order-login",
    ),
    (
        "invalid peer certificate",
        "Name the authority that signed etcd's certificate in the file of --order-login (ca = FILE)",
    ),
    (
        "received fatal alert",
        "etcd asks for a certificate that it believes: name one in the file of --order-login (certificate = FILE, \
         key = FILE)",
    ),
    ("invalid user ID or password", "They are in the file of --order-login (user = NAME, password = ...)"),
    (
        "user name is empty",
        "etcd asks for a name and a password: put them into the file of --order-login (user = NAME, password = ...)",
    ),
    (
        "permission denied",
        "The user must be allowed to read and write all keys that begin with the prefix and a slash (etcdctl role \
         grant-permission ROLE --prefix=true readwrite PREFIX/)",
    ),
];
/// gRPC's number for "not authenticated".
const UNAUTHENTICATED: i64 = 16;

/// A cluster, reached through its gateways.
pub struct Gateway {
    agent: Agent,
    members: Vec<String>,
    described: String,
    /// The member that answered last.
    preferred: AtomicUsize,
    /// Requests that were not answered in time since the last answer.
    late: AtomicU32,
    login: Login,
    /// The authentication token, with the number of earlier tokens. Locked while a new one is requested,
    /// which is expensive for a member.
    token: Mutex<(u64, Option<Zeroizing<String>>)>,
}

/// Why one member brought no answer.
enum Fault {
    Away(String),
    Said { code: i64, text: String },
}

impl Gateway {
    /// A client for the members in `access`; `login` names a file with user name, password and certificates, if any are
    /// needed. It sends no request yet.
    ///
    /// # Errors
    /// [`AccessError`]
    pub fn new(access: &Access, login: Option<&Path>) -> Result<Gateway, AccessError> {
        let login = login.map(Login::read).transpose()?.unwrap_or_default();
        let (authorities, own) = certificates_of(access.is_tls, &login)?;
        let config = client(authorities, own).proxy(None).max_idle_connections_per_host(16).build();
        let scheme = if access.is_tls { "https" } else { "http" };
        Ok(Gateway {
            agent: config.into(),
            members: access.members.iter().map(|member| format!("{scheme}://{member}/v3")).collect(),
            described: access.to_string(),
            preferred: AtomicUsize::new(0),
            late: AtomicU32::new(0),
            login,
            token: Mutex::default(),
        })
    }

    fn request(&self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let body = Zeroizing::new(body.to_string());
        let first = self.preferred.load(Ordering::Relaxed);
        let mut why = "it has no members".to_owned();
        for offset in 0..self.members.len() {
            let index = (first + offset) % self.members.len();
            match self.request_one(&self.members[index], path, &body) {
                Ok(answer) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Fault::Away(reason)) => why = format!("{}: {reason}", self.members[index]),
                Err(Fault::Said { text, .. }) if text.contains("space exceeded") => {
                    return Err(EtcdError::Full(text));
                }
                // Unavailable, too slow, no leader, too many requests: the request may or may not have been
                // carried out.
                Err(Fault::Said { code: 1 | 2 | 4 | 8 | 10 | 13 | 14, text }) => {
                    why = format!("{}: {text}", self.members[index]);
                }
                Err(Fault::Said { text, .. }) => {
                    let way_out = WAYS_OUT.iter().find(|(part, _)| text.contains(part));
                    return Err(EtcdError::Refused(match way_out {
                        Some((_, way_out)) => format!("{text}. {way_out}"),
                        None => text,
                    }));
                }
            }
        }
        Err(EtcdError::Away(why))
    }

    fn request_one(&self, member: &str, path: &str, body: &str) -> Result<Value, Fault> {
        if self.login.user.is_none() {
            return self.post(member, path, body, None);
        }
        let (number, known) = self.token.lock().clone();
        if let Some(token) = known {
            match self.post(member, path, body, Some(&token)) {
                // A token ends after a while.
                Err(Fault::Said { code: UNAUTHENTICATED, .. }) => {}
                Err(Fault::Said { text, .. }) if text.contains("invalid auth token") => {}
                other => return other,
            }
        }
        let token = self.log_in(member, number)?;
        self.post(member, path, body, Some(&token))
    }

    /// A newer token than the one with this number. Only one is requested, however many threads need it.
    fn log_in(&self, member: &str, ended: u64) -> Result<Zeroizing<String>, Fault> {
        let mut token = self.token.lock();
        if let (number, Some(token)) = &*token
            && *number > ended
        {
            return Ok(token.clone());
        }
        let credentials = json!({ "name": self.login.user, "password": *self.login.password });
        let answer =
            self.post(member, "/auth/authenticate", &Zeroizing::new(credentials.to_string()), None)?;
        let given = answer["token"].as_str().ok_or_else(|| Fault::Away("it gave no token".to_owned()))?;
        let given = Zeroizing::new(given.to_owned());
        *token = (token.0 + 1, Some(given.clone()));
        Ok(given)
    }

    fn post(&self, member: &str, path: &str, body: &str, token: Option<&str>) -> Result<Value, Fault> {
        let away = |error: ureq::Error| {
            if matches!(error, ureq::Error::Timeout(_)) {
                self.late.fetch_add(1, Ordering::Relaxed);
            }
            let text = error.to_string();
            match CERTIFICATES.iter().any(|part| text.contains(part)) {
                true => Fault::Said { code: UNAUTHENTICATED, text },
                false => Fault::Away(text),
            }
        };
        let patience = PATIENCE * 2u32.pow(self.late.load(Ordering::Relaxed).min(DOUBLINGS_MAX));
        let mut request = self
            .agent
            .post(format!("{member}{path}"))
            .config()
            .timeout_global(Some(patience))
            .build()
            .header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let mut response = request.send(body).map_err(away)?;
        let status = response.status().as_u16();
        let text =
            response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(away)?;
        self.late.store(0, Ordering::Relaxed);
        // Streaming calls return one reply per line: the first is the requested one.
        let first = text.lines().next().unwrap_or("");
        if status == 400 && first.contains(NAMED_CERTIFICATE) {
            return Err(Fault::Said { code: UNAUTHENTICATED, text: first.to_owned() });
        }
        let answer: Value = serde_json::from_str(first).map_err(|_| {
            Fault::Away(format!("status {status}, and no answer of etcd's: {}", start_of(first)))
        })?;
        let message = [&answer["error"], &answer["message"], &answer["error"]["message"]];
        let message = message.into_iter().find_map(Value::as_str);
        match (status, message) {
            (200, None) => Ok(answer),
            (status, message) => Err(Fault::Said {
                code: number(&answer["code"]).max(number(&answer["error"]["grpc_code"])),
                text: message.map_or_else(|| format!("status {status}"), str::to_owned),
            }),
        }
    }
}

/// The beginning of a malformed answer, for a message.
fn start_of(text: &str) -> String {
    let shown: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    format!("'{shown}'")
}

impl Kv for Gateway {
    fn transact(&self, transaction: &Transaction) -> Result<TransactionResult, EtcdError> {
        let steps = |steps: &[Step]| -> Vec<Value> { steps.iter().map(step).collect() };
        let body = json!({
            "compare": transaction.compares.iter().map(compare).collect::<Vec<_>>(),
            "success": steps(&transaction.steps),
            "failure": steps(&transaction.otherwise),
        });
        let answer = self.request("/kv/txn", &body)?;
        let responses = answer["responses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = responses.iter().filter_map(|one| one.get("response_range")).map(pairs);
        let found = found.collect::<Option<Vec<_>>>();
        Ok(TransactionResult {
            succeeded: answer["succeeded"].as_bool().unwrap_or(false),
            revision: number(&answer["header"]["revision"]),
            found: found.ok_or_else(malformed)?,
        })
    }

    fn get(&self, get: &Get) -> Result<Vec<Pair>, EtcdError> {
        pairs(&self.request("/kv/range", &range(get))?).ok_or_else(malformed)
    }

    fn grant(&self, term: Duration) -> Result<LeaseId, EtcdError> {
        let answer = self.request("/lease/grant", &json!({ "TTL": term.as_secs().to_string() }))?;
        match number(&answer["ID"]) {
            0 => Err(malformed()),
            lease => Ok(lease),
        }
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, EtcdError> {
        let answer = self.request("/lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        let seconds = number(&answer["result"]["TTL"]);
        Ok((seconds > 0).then(|| Duration::from_secs(seconds.unsigned_abs())))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.request("/lease/revoke", &json!({ "ID": lease.to_string() })).map(drop)
    }

    fn describe(&self) -> String {
        self.described.clone()
    }
}

fn malformed() -> EtcdError {
    EtcdError::Away("its answer makes no sense".to_owned())
}

/// Decodes a 64-bit number, which comes as text.
fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn text(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => Some(Vec::new()),
        value => Base64::decode_vec(value.as_str()?).ok(),
    }
}

fn compare(compare: &Compare) -> Value {
    match compare {
        Compare::Created(key, at) => {
            json!({ "key": text(key), "target": "CREATE", "result": "EQUAL", "create_revision": at.to_string() })
        }
        Compare::Modified(key, at) => {
            json!({ "key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": at.to_string() })
        }
    }
}

fn range(get: &Get) -> Value {
    let mut value = keys(&get.keys);
    value["limit"] = json!(get.limit.to_string());
    value["keys_only"] = json!(get.keys_only);
    if get.last_first {
        value["sort_order"] = json!("DESCEND");
        value["sort_target"] = json!("KEY");
    }
    value
}

fn keys(keys: &Keys) -> Value {
    match keys {
        Keys::One(key) => json!({ "key": text(key) }),
        Keys::Range(from, to) => json!({ "key": text(from), "range_end": text(to) }),
    }
}

fn step(step: &Step) -> Value {
    match step {
        Step::Put(key, value, lease) => json!({
            "request_put": { "key": text(key), "value": text(value), "lease": lease.unwrap_or(0).to_string() }
        }),
        Step::Delete(which) => json!({ "request_delete_range": keys(which) }),
        Step::Get(get) => json!({ "request_range": range(get) }),
    }
}

fn pairs(answer: &Value) -> Option<Vec<Pair>> {
    let Some(found) = answer.get("kvs") else { return Some(Vec::new()) };
    let pair = |one: &Value| {
        let revision = |name: &str| -> Revision { number(&one[name]) };
        Some(Pair {
            key: bytes(&one["key"])?,
            value: bytes(&one["value"])?,
            created: revision("create_revision"),
            modified: revision("mod_revision"),
        })
    };
    found.as_array()?.iter().map(pair).collect()
}

/// The authorities for the members' certificates, and our own certificate.
fn certificates_of(is_tls: bool, login: &Login) -> Result<(Authorities, Option<ClientCert>), AccessError> {
    let file = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| AccessError::File { path: path.to_owned(), why: error.to_string() })
    };
    let certificates = |path: &Path| -> Result<Vec<Certificate<'static>>, AccessError> {
        let pem = file(path)?;
        let found = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        match found.collect::<Vec<_>>() {
            found if found.is_empty() => {
                Err(AccessError::File { path: path.to_owned(), why: "it has no certificate".to_owned() })
            }
            found => Ok(found),
        }
    };
    let authorities = match (&login.authority, is_tls) {
        (Some(path), _) => Authorities::Given(certificates(path)?),
        (None, true) => Authorities::System,
        (None, false) => Authorities::None,
    };
    let own = match (&login.certificate, &login.key) {
        (Some(certificate), Some(key)) => {
            let read = Zeroizing::new(file(key)?);
            let parsed = PrivateKey::from_pem(&read)
                .map_err(|error| AccessError::File { path: key.clone(), why: error.to_string() })?;
            Some(ClientCert::new_with_certs(&certificates(certificate)?, parsed))
        }
        _ => None,
    };
    Ok((authorities, own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Answers one request after a delay, if the client still waits then.
    fn answer(mut stream: TcpStream) {
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        while !request.ends_with(b"}") {
            match stream.read(&mut piece) {
                Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
                _ => return,
            }
        }
        std::thread::sleep(PATIENCE + PATIENCE / 2);
        let body = r#"{"header":{"revision":"7"},"succeeded":true}"#;
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    }

    /// Proves: for a member that takes longer than the first time limit, and starts again with each attempt,
    /// the limit grows until it answers.
    #[test]
    fn who_is_slow_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("etcd://{}/prefix", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || stream.map(answer));
            }
        });
        let gateway = Gateway::new(&address.parse().expect("an access"), None).expect("made");
        // The member's delay decides how many attempts it takes; with a fixed limit none would succeed.
        let mut attempts = (0..=DOUBLINGS_MAX + 1).map(|_| gateway.transact(&Transaction::default()));
        assert_eq!(attempts.find_map(Result::ok).map(|done| done.revision), Some(7));
        assert_eq!(gateway.late.load(Ordering::Relaxed), 0);
    }
}
