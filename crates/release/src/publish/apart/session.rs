//! Handles the requests of a walker in the publisher: the guard between the process that parses a tree and
//! the one that signs it.

use super::grammar::{
    EnterReply, Fault, KNOWN_BLOCKS_MAX, KNOWN_MAX, KnownBlocks, NamedStatus, OPENED_MAX, OpenReply, OrErrno,
    PART_BYTES_MAX, REQUEST_BYTES_MAX, ReplyPacket, Request, RequestPacket, WalkOptions, path_of,
};
use crate::index::Index;
use crate::pack;
use crate::publish::local::Local;
use crate::publish::store::Lane;
use crate::publish::walk_io::{WalkIo, WalkResult};
use crate::publish::{HINTS_BYTES_MAX, PublishError};
use borsh::BorshSerialize;
use holdfast_content::{BODY_BYTES_MAX, BlockKind, Inode, InodeKind};
use holdfast_crypto::{decode, encode};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::path::PathBuf;

/// Most notes that a walk may add.
const NOTES_MAX: usize = 100;
/// Most characters of a line for people.
const TEXT_CHARS_MAX: usize = 4096 + 256;

/// What the publisher does next, after a packet.
pub enum Step {
    /// Send this reply, with these files.
    Reply(ReplyPacket, Vec<File>),
    /// The walk is over.
    End(Result<WalkResult, PublishError>),
}

/// One publishing, as seen by its walker.
pub struct Session<'a, 'l> {
    options: WalkOptions,
    local: &'a Local<'l>,
    /// The index before this publishing.
    index: &'a Index,
    /// The parts of the current request that have arrived.
    request: Vec<u8>,
    /// The parts of a reply that have not been sent.
    pending_reply: Vec<u8>,
    hints: Vec<u8>,
}

type ReplyWithFiles = Result<(Vec<u8>, Vec<File>), PublishError>;

fn misbehaved<T>(what: &str) -> Result<T, PublishError> {
    Err(PublishError::Misbehaved(what.to_owned()))
}

/// Untrusted text in a printable form.
pub fn printable(words: &str) -> String {
    words.chars().take(TEXT_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn printable_path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(printable(&path_of(bytes).to_string_lossy()))
}

fn name_of(name: Vec<u8>) -> Result<CString, PublishError> {
    CString::new(name).or_else(|_| misbehaved("it asked for a name with a zero in it"))
}

fn errno<T>(outcome: Result<T, Errno>) -> OrErrno<T> {
    outcome.map_err(Errno::raw_os_error)
}

fn reply<A: BorshSerialize>(value: &A) -> ReplyWithFiles {
    Ok((encode(value), Vec::new()))
}

impl<'a, 'l> Session<'a, 'l> {
    /// Starts a session.
    pub fn new(options: WalkOptions, local: &'a Local<'l>, index: &'a Index) -> Session<'a, 'l> {
        Session { options, local, index, request: Vec::new(), pending_reply: Vec::new(), hints: Vec::new() }
    }

    /// Handles the body of a packet.
    pub fn take(&mut self, body: &[u8]) -> Step {
        self.packet(body).unwrap_or_else(|error| Step::End(Err(error)))
    }

    fn packet(&mut self, body: &[u8]) -> Result<Step, PublishError> {
        let Ok(packet) = decode::<RequestPacket>(body) else {
            return misbehaved("it sent a packet that is no question");
        };
        let (part, is_last) = match packet {
            RequestPacket::More if self.pending_reply.is_empty() => {
                return misbehaved("it wants more than there is");
            }
            RequestPacket::More => return Ok(Step::Reply(self.next_packet(), Vec::new())),
            RequestPacket::Part(part) => (part, false),
            RequestPacket::Last(part) => (part, true),
        };
        if !self.pending_reply.is_empty() {
            return misbehaved("it asks before it has its answer");
        }
        if self.request.len() + part.len() > REQUEST_BYTES_MAX {
            return misbehaved("it sent a question longer than any");
        }
        self.request.extend(part);
        if !is_last {
            return Ok(Step::Reply(ReplyPacket::Received, Vec::new()));
        }
        let request = std::mem::take(&mut self.request);
        let request = match decode::<Request>(&request) {
            Ok(Request::Done(walked)) => return self.done(walked).map(|walked| Step::End(Ok(walked))),
            Ok(Request::Failed(fault)) => return Err(self.failed(fault)),
            Ok(request) => request,
            Err(_) => return misbehaved("it sent what is no question"),
        };
        let (reply, files) = self.handle(request)?;
        self.pending_reply = reply;
        Ok(Step::Reply(self.next_packet(), files))
    }

    fn next_packet(&mut self) -> ReplyPacket {
        if self.pending_reply.len() <= PART_BYTES_MAX {
            return ReplyPacket::Last(std::mem::take(&mut self.pending_reply));
        }
        let rest = self.pending_reply.split_off(PART_BYTES_MAX);
        ReplyPacket::Part(std::mem::replace(&mut self.pending_reply, rest))
    }

    fn handle(&mut self, request: Request) -> ReplyWithFiles {
        match request {
            Request::Options => reply(&self.options),
            Request::Enter(leaves, name) => {
                let name = name.map(name_of).transpose()?;
                self.local.leave_some(leaves as usize);
                let entered = self.local.enter(name.as_deref());
                reply::<EnterReply>(&errno(entered.map(|here| (here, self.entries(0)))))
            }
            Request::Leave(count) => {
                self.local.leave_some(count as usize);
                reply(&())
            }
            Request::Entries(from) => reply(&self.entries(from)),
            Request::Open(names) => self.open(names),
            Request::Link(name) => reply(&errno(self.local.link(&name_of(name)?))),
            Request::KnownBlocks(from) => reply(&self.known_blocks(from)),
            Request::Put(blocks) => {
                for (is_large, frame) in &blocks {
                    self.put(*is_large, frame)?;
                }
                reply(&())
            }
            Request::Fetch(address) => match self.local.store.stored(&address) {
                Ok(stored) => reply(&stored),
                Err(why) => Err(self.damaged(why)),
            },
            Request::Known(wanted) if wanted.len() > KNOWN_MAX => misbehaved("it asks for more than it may"),
            Request::Known(wanted) => reply(&self.local.known(&wanted)),
            Request::Remember(entries) => {
                for (path, signs, value) in entries {
                    self.local.remember(&path, &signs, &value)?;
                }
                reply(&())
            }
            Request::Progress(progress) => {
                self.local.check()?;
                reply(&self.local.progress(progress))
            }
            Request::Hints(part) => {
                if self.hints.len() + part.len() > HINTS_BYTES_MAX {
                    return misbehaved("it sent more hints than there can be");
                }
                self.hints.extend(part);
                reply(&())
            }
            Request::Done(_) | Request::Failed(_) => misbehaved("it ends twice"),
        }
    }

    fn entries(&self, from: u64) -> OrErrno<Vec<NamedStatus>> {
        let entries = errno(self.local.entries(from))?.into_iter();
        Ok(entries.map(|entry| (entry.name.into_bytes(), errno(entry.status))).collect())
    }

    fn open(&self, names: Vec<Vec<u8>>) -> ReplyWithFiles {
        if names.len() > OPENED_MAX {
            return misbehaved("it asks for more than it may");
        }
        let names = names.into_iter().map(name_of).collect::<Result<Vec<CString>, _>>()?;
        let names: Vec<&CStr> = names.iter().map(CString::as_c_str).collect();
        let mut files = Vec::new();
        let mut replies: Vec<OpenReply> = Vec::new();
        for opened in self.local.open(&names) {
            replies.push(errno(opened.map(|opened| {
                files.push(opened.file);
                (opened.status, opened.attributes)
            })));
        }
        Ok((encode(&replies), files))
    }

    fn known_blocks(&self, from: u64) -> KnownBlocks {
        let entries = &self.index.entries;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(entries.len());
        let end = entries.len().min(from + KNOWN_BLOCKS_MAX);
        let here = entries[from..end].iter().filter(|(_, location)| !location.is_at_origin());
        (here.map(|(key, _)| *key).collect(), (end < entries.len()).then_some(end as u64))
    }

    /// Stores a block if it has the digest in its frame, and all blocks that it refers to are stored.
    fn put(&self, is_large: bool, frame: &[u8]) -> Result<(), PublishError> {
        let found = pack::Frame::first(frame).filter(|(_, rest)| rest.is_empty());
        let Some((address, stored)) = found.and_then(|(frame, _)| Some((frame.address, frame.stored()?)))
        else {
            return misbehaved("it sent a block that is none");
        };
        let store = self.local.store;
        if store.has(&address) {
            return Ok(());
        }
        let of_releases = [BlockKind::Chunk, BlockKind::MapLeaf, BlockKind::MapInner, BlockKind::Inode]
            .contains(&stored.kind);
        if !of_releases {
            return misbehaved("it sent a block of a kind that no release has");
        }
        if !stored.references.iter().all(|reference| store.has(reference)) {
            return misbehaved("it sent a block that refers to what is not there");
        }
        if stored.clone().open_any(&store.key(), address, BODY_BYTES_MAX).is_err() {
            return misbehaved("it sent a block that is not the one it calls it");
        }
        store.set_lane(if is_large { Lane::Large } else { Lane::Small });
        store.put_stored(address, stored);
        store.check()
    }

    fn done(&mut self, walked: WalkResult) -> Result<WalkResult, PublishError> {
        self.local.check()?;
        match Inode::load(self.local, &walked.root) {
            Ok(inode) if inode.kind == InodeKind::Directory => {}
            Ok(_) => return misbehaved("the root of its tree is no directory"),
            Err(_) => return misbehaved("the root of its tree is not there"),
        }
        let notes = walked.notes.iter().take(NOTES_MAX).map(|note| printable(note)).collect();
        let hints = Some(std::mem::take(&mut self.hints)).filter(|hints| !hints.is_empty());
        Ok(WalkResult { notes, hints, ..walked })
    }

    fn failed(&self, fault: Fault) -> PublishError {
        match fault {
            Fault::Local(path, why) => {
                PublishError::Local { path: printable_path(path), why: printable(&why) }
            }
            Fault::Changing(path) => PublishError::Changing { path: printable_path(path) },
            Fault::Unfit(path, why) => {
                PublishError::Unfit { path: printable_path(path), why: printable(&why) }
            }
            Fault::Damaged(why) => self.damaged(printable(&why)),
            Fault::Stopped => PublishError::Stopped,
        }
    }

    fn damaged(&self, why: String) -> PublishError {
        PublishError::Damaged { path: self.local.store.directory().to_owned(), why }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
