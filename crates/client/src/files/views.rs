//! View sharing: when may a system call be answered from a view fetched for an earlier request?
//!
//! SUNDR (5.1) counts system calls in the kernel; FUSE has no such counter. Two rules take its place:
//!
//! 1. A view serves every request that *arrived* before the operation that fetched it was sent. The engine
//!    does this: whoever waits shares the next operation.
//! 2. A system call on a path sends a LOOKUP for each component and then the request proper, all from one
//!    thread, one after the other. So the view of a LOOKUP also serves the *next* request of the same thread
//!    if that request is about the inode the LOOKUP found: either a request on the inode itself (OPEN, GETATTR
//!    and the like), or the LOOKUP of the next component in it.
//!
//! Why this is sound: a thread runs one system call at a time. If both requests belong to the same call, the
//! view was fetched after that call began, which is all that close-to-open asks. A request on an inode that
//! comes from a *later* call is preceded by that call's own LOOKUP of it, which replaces the token, except
//! when the call goes through a descriptor; then the answer is at most [`REQUEST_AGE_MAX`] old, no older than
//! the attributes that the kernel itself is allowed to keep.
//!
//! A LOOKUP in a directory may begin a later call, when the path is relative to that directory. Then the
//! token must not count. A working directory is recognised by its name, a directory descriptor because the
//! directory is open; what is left (an O_PATH descriptor, a new root directory, a bind mount) is bounded by
//! [`WALK_AGE_MAX`], the time between two components of one path. By the same argument a second LOOKUP in a
//! directory that was a component of a path, and was not looked up again since, belongs to the same call:
//! rename and link look up two names.

use super::backend::View;
use super::types::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Oldest view that serves a request on the inode looked up.
pub const REQUEST_AGE_MAX: Duration = Duration::from_secs(1);
/// Longest pause between two components of one path.
pub const WALK_AGE_MAX: Duration = Duration::from_millis(20);
/// Most threads remembered.
const TOKENS_MAX: usize = 4096;

struct Token {
    ino: Ino,
    name: Vec<u8>,
    /// The directory it was found in, if that was a component of the same path.
    within: Option<Directory>,
    view: Arc<dyn View>,
    /// When the view was asked for.
    fetched: Instant,
    /// When the LOOKUP was answered.
    answered: Instant,
}

/// A directory as a component of a path.
#[derive(Clone)]
pub struct Directory {
    ino: Ino,
    name: Vec<u8>,
}

/// A view and when it was asked for.
#[derive(Clone)]
pub struct Fetched {
    /// The view.
    pub view: Arc<dyn View>,
    /// The moment before the fetch.
    pub at: Instant,
}

/// The last LOOKUP of each thread.
#[derive(Default)]
pub struct Tokens {
    tokens: Mutex<HashMap<u32, Token>>,
}

impl Tokens {
    /// Remembers that `thread` looked up `name` and found `ino`, `within` a component of the same path.
    pub fn offer(&self, thread: u32, ino: Ino, name: &[u8], fetched: &Fetched, within: Option<Directory>) {
        if thread == 0 {
            return;
        }
        let now = Instant::now();
        let token = Token {
            ino,
            name: name.to_vec(),
            within,
            view: fetched.view.clone(),
            fetched: fetched.at,
            answered: now,
        };
        let mut tokens = self.tokens.lock();
        if tokens.len() >= TOKENS_MAX {
            tokens.retain(|_, token| now.duration_since(token.fetched) <= REQUEST_AGE_MAX);
            if tokens.len() >= TOKENS_MAX {
                tokens.clear();
            }
        }
        tokens.insert(thread, token);
    }

    /// The view for a request on `ino`, if the same thread has just looked it up. Whatever the answer, the
    /// token is spent.
    pub fn take(&self, thread: u32, ino: Ino) -> Option<Fetched> {
        let token = self.spend(thread)?;
        (token.ino == ino && token.fetched.elapsed() <= REQUEST_AGE_MAX)
            .then_some(Fetched { view: token.view, at: token.fetched })
    }

    /// The view for a LOOKUP in `directory`, if the same thread has just looked that up as a component of the
    /// same path, or something else in it (rename looks up two names), as far as can be told. `is_open`: the
    /// directory has an open descriptor. The token is spent.
    pub fn take_for_walk(&self, thread: u32, directory: Ino, is_open: bool) -> Option<(Fetched, Directory)> {
        let token = self.spend(thread)?;
        let component = match token.within {
            Some(within) if within.ino == directory => within,
            _ => Directory { ino: token.ino, name: token.name },
        };
        let next = component.ino == directory
            && !is_open
            && token.answered.elapsed() <= WALK_AGE_MAX
            && token.fetched.elapsed() <= REQUEST_AGE_MAX
            && !may_be_working_directory(thread, &component.name);
        next.then_some((Fetched { view: token.view, at: token.fetched }, component))
    }

    /// Forgets a thread's token: it has sent another request.
    pub fn spend_any(&self, thread: u32) {
        self.spend(thread);
    }

    fn spend(&self, thread: u32) -> Option<Token> {
        if thread == 0 { None } else { self.tokens.lock().remove(&thread) }
    }
}

/// Whether a directory named `name` may be the working directory of a thread. Reads a link in /proc, which
/// asks no file system; when it cannot be read, the answer is yes.
fn may_be_working_directory(thread: u32, name: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::fs::read_link(format!("/proc/{thread}/cwd")) else { return true };
    path.as_os_str().as_bytes().rsplit(|&byte| byte == b'/').next().is_none_or(|last| last == name)
}
