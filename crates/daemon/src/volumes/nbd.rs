//! Volumes exported to clients of Network Block Devices (NBD).

use super::export_report::ExportReport;
use super::served::Served;
use holdfast_export::{Address, Export, Limits, Server, StartError};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::UnmountMode;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it may take to notice that a client has just disconnected, or that a device was released after
/// unmounting.
pub(super) const GOING: Duration = Duration::from_secs(2);

/// An NBD server.
pub struct Nbd {
    server: Mutex<Option<Server>>,
    address: Address,
}

impl Nbd {
    /// Starts to listen.
    pub fn begin(address: &Address, disk: Arc<Served>, source: &str) -> Outcome<Nbd> {
        let (name, description) = ("volume".to_owned(), source.to_owned());
        let is_read_only = disk.is_read_only();
        let export = Export { name, description, disk, is_read_only };
        let server = Server::start(address, export, Limits::default()).map_err(|error| match error {
            StartError::Listen { .. } => Failure::new(Exit::System, error.to_string())
                .hint("is the address in use, or its directory missing? Choose another one"),
            StartError::NotLocal(_) => Failure::new(Exit::Usage, error.to_string()),
        })?;
        let address = server.address().clone();
        Ok(Nbd { server: Mutex::new(Some(server)), address })
    }

    /// A report for people.
    pub fn report(&self) -> ExportReport {
        ExportReport { kind: "nbd".to_owned(), directory: PathBuf::new(), path: self.address.uri().into() }
    }

    /// Ends all connections; or refuses if there are any and `manner` is [`UnmountMode::Gently`].
    pub fn end(&self, manner: UnmountMode) -> Outcome {
        let mut server = self.server.lock();
        let connections = || server.as_ref().map_or(0, Server::connections);
        let end = Instant::now() + GOING;
        while connections() > 0 && manner == UnmountMode::Gently && Instant::now() < end {
            std::thread::sleep(GOING / 40);
        }
        let clients = connections();
        if clients > 0 && manner == UnmountMode::Gently {
            let message = format!("{}: {clients} client connections are open", self.address);
            return Err(Failure::new(Exit::InUse, message)
                .hint("unmount what is on it and disconnect the clients first (nbd-client -d)"));
        }
        *server = None;
        Ok(())
    }
}
