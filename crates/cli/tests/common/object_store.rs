//! An object store: a simulated one behind the S3 protocol, served by the test, or the one that `HOLDFAST_S3_ENDPOINT` names.

use super::{free_port, run};
use holdfast_tiered::simulated::Simulated;
use holdfast_tiered::simulated::http::{KEY_ID, SECRET, Server};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

pub const BUCKET: &str = "holdfast-test";

/// An object store with one bucket.
pub enum Engine {
    /// A store that this process serves; `server` is `None` while it is away.
    Own { objects: Simulated, address: SocketAddr, server: Option<Server> },
    /// Another program, with commands that kill and start it.
    Other { endpoint: String },
}

impl Engine {
    pub fn start() -> Engine {
        if let Ok(endpoint) = std::env::var("HOLDFAST_S3_ENDPOINT") {
            return Engine::Other { endpoint };
        }
        let objects = Simulated::new();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let server = Server::start(&objects, BUCKET, address).expect("it serves");
        Engine::Own { objects, address, server: Some(server) }
    }

    /// The address of a prefix of this test's own, with these options.
    pub fn address(&self, options: &str) -> String {
        self.address_at(&self.endpoint(), options)
    }

    pub fn endpoint(&self) -> String {
        match self {
            Engine::Own { address, .. } => format!("http://{address}"),
            Engine::Other { endpoint } => endpoint.clone(),
        }
    }

    /// The address of this test's prefix at another endpoint.
    pub fn address_at(&self, endpoint: &str, options: &str) -> String {
        let mark = std::process::id();
        let name = std::thread::current().name().unwrap_or("test").replace("::", "-").replace('_', "-");
        format!("s3://{BUCKET}/{mark}/{name}?endpoint={endpoint}{options}")
    }

    /// Ends the object store as a crash would.
    pub fn kill(&mut self) {
        match self {
            Engine::Own { server, .. } => drop(server.take()),
            Engine::Other { .. } => hook("HOLDFAST_S3_KILL"),
        }
    }

    pub fn start_again(&mut self) {
        match self {
            Engine::Own { objects, address, server } => {
                *server = Some(Server::start(objects, BUCKET, *address).expect("it serves"));
            }
            Engine::Other { .. } => hook("HOLDFAST_S3_START"),
        }
    }
}

fn hook(name: &str) {
    let command = std::env::var(name).unwrap_or_else(|_| panic!("{name} is a command"));
    run(Command::new("sh").args(["-c", &command]).stdin(Stdio::null()));
}

pub const CREDENTIALS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET)];
