//! VFS: a file system for the programs of one session (paper, section 4.9). It speaks only for its user, so
//! an error in it can affect only that user's files.

mod client;
mod files;
mod inodes;
mod requests;
mod session_requests;

use crate::StackError;
use crate::protocol::{VfsReply, VfsRequest};
use crate::views::Views;
pub use client::Client;
use files::Files;
use fuser::{Config, INodeNo, SessionACL};
use holdfast_access::{Acl, Principal};
use holdfast_components::{Context, Refusal, Reply};
use std::process::ExitCode;
use std::sync::Arc;

/// Threads that answer the kernel's requests.
const THREADS: usize = 4;

/// The configuration of a session's VFS.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// The number of the disk.
    pub disk: u16,
    /// The user or program whose session it is.
    pub user: Principal,
    /// The FSDriver of the disk, to which deleted blocks are returned.
    pub driver: Principal,
    /// The ACL of new blocks.
    pub acl: Acl,
    /// The user id of its files in the mount.
    pub uid: u32,
    /// The group id of its files in the mount.
    pub gid: u32,
    /// Signed credentials that it presents at its beginning.
    pub credentials: Vec<Vec<u8>>,
    /// Whether only one program may open its files, identified by the helper.
    pub is_program: bool,
    /// The volume's identity.
    pub volume: [u8; 16],
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let missing = || StackError::Component("there is no session with the kernel".to_owned());
        let fuse = context.ports.take_file("fuse").ok_or_else(missing)?;
        let files = Arc::new(Files::new(&context.ports, configuration.clone(), Views::Read)?);
        let failed_to_prove = |refusal: Refusal| StackError::Component(refusal.to_string());
        files.begin(&configuration.credentials).map_err(failed_to_prove)?;
        files.return_blocks();
        let known = Arc::clone(&files);
        let (uid, gid, is_program) = (configuration.uid, configuration.gid, configuration.is_program);
        let served = requests::FuseHandler { files, uid, gid, is_program };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let failed =
            |error: std::io::Error| StackError::Component(format!("the session with the kernel: {error}"));
        let session = fuser::Session::from_fd(served, fuse, SessionACL::All, config).map_err(failed)?;
        let notifier = session.notifier();
        let ports = Arc::clone(&context.ports);
        let run = move || match session.run() {
            // The mount has ended, so the component is not needed any more.
            Ok(()) => ports.end(0),
            Err(error) => {
                eprintln!("the session with the kernel: {error}");
                ports.end(1);
            }
        };
        std::thread::Builder::new().name("session".to_owned()).spawn(run).map_err(failed)?;
        // Only the host can send requests over this port.
        Ok(context.ports.serve_owned(1, move |request| {
            let answer = request.question().map(|question: VfsRequest| match question {
                VfsRequest::Forget => {
                    for ino in known.settled() {
                        // This fails if the kernel does not have the inode, and then nothing is cached.
                        let _ = notifier.inval_inode(INodeNo(ino), 0, 0);
                    }
                    VfsReply
                }
            });
            Reply::from(answer)
        })?)
    })
}
