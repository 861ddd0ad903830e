//! Calls of programs, made through the inode API as the kernel would make them.

use super::oracle::{Bytes, Call, Observation};
use super::world::{Mount, Refusal, WHO};
use holdfast_client::FsError;
use holdfast_client::files::{
    Ino, Lock, LockMode, LockRange, LockSpace, OpenFlags, RenameFlags, SetAttributes, WriteSource,
};

/// Bytes that one read asks for, as the kernel does.
const PART: usize = 128 << 10;
/// The name of the past state.
pub const PAST: &str = "before";

impl Mount {
    /// Makes a call, and returns what a program would see.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn call(&self, call: &Call) -> Result<Observation, Refusal> {
        match self.make(call) {
            Err(FsError::NotFound) => Ok(Observation::NotThere),
            Err(FsError::Exists) => Ok(Observation::Taken),
            Err(error) => Err(error.into()),
            Ok(seen) => Ok(seen),
        }
    }

    fn make(&self, call: &Call) -> Result<Observation, FsError> {
        let (files, team) = (&self.files, self.team);
        let find = |name: &str| files.lookup(&WHO, team, name.as_bytes());
        match call {
            Call::Read(name) => {
                let ino = find(name)?.ino;
                return self.read_all(ino).map(Observation::Bytes);
            }
            Call::Past(name) => {
                let mut ino = Ino::ROOT;
                for part in [".snapshots", PAST, "team", name] {
                    ino = files.lookup(&WHO, ino, part.as_bytes())?.ino;
                }
                return self.read_all(ino).map(Observation::Bytes);
            }
            Call::Stat(name) => {
                let found = find(name)?;
                return Ok(Observation::Attributes(found.size, found.mode));
            }
            Call::List => return self.names().map(Observation::Names),
            Call::Write(name, bytes) => {
                let ino = find(name)?.ino;
                let handle = files.open(&WHO, ino, OpenFlags::READ_WRITE)?.handle;
                let written = files
                    .write(handle, 0, bytes, WriteSource::Call)
                    .and_then(|_| files.setattr(&WHO, ino, size(bytes.len()), Some(handle)))
                    .and_then(|_| files.fsync(handle));
                files.release(handle);
                return written.map(|()| Observation::Done);
            }
            Call::Create(name) => {
                let flags = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
                let (_, opened) = files.create(&WHO, team, name.as_bytes(), 0o644, flags)?;
                files.release(opened.handle);
            }
            Call::Rename(from, to) => {
                files.rename(&WHO, team, from.as_bytes(), team, to.as_bytes(), RenameFlags::Replace)?;
            }
            Call::Unlink(name) => files.unlink(&WHO, team, name.as_bytes())?,
            Call::Chmod(name, mode) => {
                let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                files.setattr(&WHO, find(name)?.ino, set, None)?;
            }
            Call::Chown(name) => {
                let set = SetAttributes { gid: Some(WHO.gid), ..SetAttributes::default() };
                files.setattr(&WHO, find(name)?.ino, set, None)?;
            }
            Call::Lock(name) => {
                let handle = files.open(&WHO, find(name)?.ino, OpenFlags::READ_WRITE)?.handle;
                let lock = Lock { space: LockSpace::Flock, owner: 1, process: 1, range: LockRange::ALL };
                let locked = files.lock(&WHO, handle, &lock, LockMode::Exclusive, false);
                let unlocked = files.unlock(handle, &lock);
                files.release(handle);
                return match locked? {
                    None => unlocked.map(|()| Observation::Done),
                    Some(_) => Ok(Observation::Taken),
                };
            }
        }
        // Changes are durable, as for a program that syncs the directory.
        self.engine.flush_commits()?;
        Ok(Observation::Done)
    }

    fn read_all(&self, ino: Ino) -> Result<Bytes, FsError> {
        let opened = self.files.open(&WHO, ino, OpenFlags::READ)?;
        let mut bytes = Vec::new();
        let result = loop {
            match self.files.read(opened.handle, bytes.len() as u64, PART) {
                Ok(part) if part.is_empty() => break Ok(()),
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => break Err(error),
            }
        };
        self.files.release(opened.handle);
        result.map(|()| bytes.into())
    }

    /// All names in the group's directory, as often as the listing has them.
    fn names(&self) -> Result<Vec<String>, FsError> {
        let handle = self.files.opendir(&WHO, self.team)?;
        let (mut names, mut offset) = (Vec::new(), 0);
        let result = loop {
            let (before, mut last) = (offset, offset);
            let read = self.files.readdir(&WHO, handle, offset, &mut |item| {
                last = item.next_offset;
                names.push(String::from_utf8_lossy(item.name).into_owned());
                true
            });
            offset = last;
            match read {
                Err(error) => break Err(error),
                Ok(()) if offset == before => break Ok(()),
                Ok(()) => {}
            }
        };
        self.files.releasedir(handle);
        names.retain(|name| name != "." && name != "..");
        names.sort();
        result.map(|()| names)
    }
}

fn size(bytes: usize) -> SetAttributes {
    SetAttributes { size: Some(bytes as u64), ..SetAttributes::default() }
}
