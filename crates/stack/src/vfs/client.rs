//! VFS as a library: for a program that runs as a component and has a user's session for itself, without a
//! kernel's file system in between (the paper's section 4.11.2, where VFS is part of each client). For
//! measurements: ordinary programs use the kernel.

use super::Configuration;
use super::files::{Code, Files};
use super::inodes::ROOT;
use crate::StackError;
use crate::protocol::File;
use crate::views::Views;
use holdfast_components::Context;

/// Access to the files of one user, without the kernel.
pub struct Client(Files);

impl Client {
    /// A client for a component that was started in place of a VFS.
    ///
    /// # Errors
    /// The component was not started in place of a VFS.
    pub fn new(context: &Context, views: Views) -> Result<Client, StackError> {
        let configuration: Configuration = borsh::from_slice(&context.configuration)
            .map_err(|_| StackError::Component("its configuration is not one".to_owned()))?;
        let credentials = configuration.credentials.clone();
        let files = Files::new(&context.ports, configuration, views)?;
        files.begin(&credentials)?;
        Ok(Client(files))
    }

    /// Finds a file, which stays open until it is [closed](Client::close).
    ///
    /// # Errors
    /// An errno.
    pub fn open(&self, path: &str) -> Result<File, Code> {
        let root = File { id: ROOT, is_directory: true, ..File::default() };
        path.split('/').filter(|name| !name.is_empty()).try_fold(root, |directory, name| {
            let found = self.0.look_up(directory.id, name);
            self.close(&directory);
            found
        })
    }

    /// Forgets a file.
    pub fn close(&self, file: &File) {
        if file.id != ROOT {
            self.0.forget(file.id, 1);
        }
    }

    /// All entries of a directory, with attributes; each must be closed.
    ///
    /// # Errors
    /// An errno.
    pub fn list(&self, directory: &File) -> Result<Vec<(String, File)>, Code> {
        let (mut found, mut cookie) = (Vec::new(), 0);
        loop {
            let listed = self.0.list_files(directory.id, cookie)?;
            let Some((last, _)) = listed.last() else { return Ok(found) };
            cookie = last.cookie;
            found.extend(listed.into_iter().filter_map(|(name, file)| Some((name.name, file?))));
        }
    }

    /// Reads a part of a file.
    ///
    /// # Errors
    /// An errno.
    pub fn read(&self, file: &File, offset: u64, length: usize) -> Result<Vec<u8>, Code> {
        self.0.read(file.id, offset, length, file.size)
    }
}
