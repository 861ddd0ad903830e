//! VFS: a file system for the programs of one session (paper, section 4.9). It speaks for its user and for nobody else:
//! what it may do wrong, it does to that user's files.

mod client;
mod files;
mod inodes;
mod requests;

use crate::StackError;
use crate::views::Views;
pub use client::Client;
use files::Files;
use fuser::{Config, SessionACL};
use holdfast_access::{Acl, Principal};
use holdfast_components::{Answer, Context, Refusal};
use std::process::ExitCode;
use std::sync::Arc;

/// Threads that answer the kernel.
const THREADS: usize = 4;

/// The session.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// The disk.
    pub disk: u16,
    /// Whose it is.
    pub user: Principal,
    /// What new blocks get.
    pub acl: Acl,
    /// The numbers that files are shown to belong to.
    pub uid: u32,
    /// And to which group.
    pub gid: u32,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let missing = || StackError::Component("there is no session with the kernel".to_owned());
        let fuse = context.ports.take_file("fuse").ok_or_else(missing)?;
        let files = Arc::new(Files::new(&context.ports, configuration.clone(), Views::Read)?);
        files.return_blocks();
        let served = requests::Served { files, uid: configuration.uid, gid: configuration.gid };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let failed =
            |error: std::io::Error| StackError::Component(format!("the session with the kernel: {error}"));
        let session = fuser::Session::from_fd(served, fuse, SessionACL::All, config).map_err(failed)?;
        let ports = Arc::clone(&context.ports);
        let run = move || match session.run() {
            // The mount is gone: so is what this component is for.
            Ok(()) => ports.end(0),
            Err(error) => {
                eprintln!("the session with the kernel: {error}");
                ports.end(1);
            }
        };
        std::thread::Builder::new().name("session".to_owned()).spawn(run).map_err(failed)?;
        // Nobody may ask it anything; this waits for the order to end.
        Ok(context.ports.serve_owned(1, |_| Answer::refuse(Refusal::NotPermitted))?)
    })
}
