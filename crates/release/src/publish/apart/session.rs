//! What the publisher makes of what a walker says: the guard between what parses a tree and what signs it.

use super::grammar::{
    Ask, Entered, Fault, KNOWN_MAX, Met, Named, OPENED_MAX, OrErrno, PART_BYTES_MAX, QUESTION_BYTES_MAX,
    Question, THERE_MAX, Terms, There, Told, path_of,
};
use crate::index::Index;
use crate::pack;
use crate::publish::desk::{Desk, Walked};
use crate::publish::local::Local;
use crate::publish::store::Lane;
use crate::publish::{HINTS_BYTES_MAX, PublishError};
use borsh::BorshSerialize;
use holdfast_content::{BODY_BYTES_MAX, BlockKind, Inode, InodeKind};
use holdfast_crypto::{decode, encode};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::path::PathBuf;

/// Most notes taken.
const NOTES_MAX: usize = 100;
/// Most characters of a line for people.
const WORDS_MAX: usize = 4096 + 256;

/// What follows from a packet.
pub enum Step {
    /// This is to be told, with these files.
    Tell(Told, Vec<File>),
    /// It is over.
    End(Result<Walked, PublishError>),
}

/// A publishing, as far as its walker is concerned.
pub struct Session<'a, 'l> {
    terms: Terms,
    local: &'a Local<'l>,
    /// What was there before.
    index: &'a Index,
    /// What came of a question.
    question: Vec<u8>,
    /// What remains to be told of an answer.
    answer: Vec<u8>,
    hints: Vec<u8>,
}

type Answered = Result<(Vec<u8>, Vec<File>), PublishError>;

fn misbehaved<T>(what: &str) -> Result<T, PublishError> {
    Err(PublishError::Misbehaved(what.to_owned()))
}

/// Untrusted words, fit to be shown.
pub fn plain(words: &str) -> String {
    words.chars().take(WORDS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn plain_path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(plain(&path_of(bytes).to_string_lossy()))
}

fn name_of(name: Vec<u8>) -> Result<CString, PublishError> {
    CString::new(name).or_else(|_| misbehaved("it asked for a name with a zero in it"))
}

fn errno<T>(outcome: Result<T, Errno>) -> OrErrno<T> {
    outcome.map_err(Errno::raw_os_error)
}

fn say<A: BorshSerialize>(answer: &A) -> Answered {
    Ok((encode(answer), Vec::new()))
}

impl<'a, 'l> Session<'a, 'l> {
    /// At the beginning.
    pub fn new(terms: Terms, local: &'a Local<'l>, index: &'a Index) -> Session<'a, 'l> {
        Session { terms, local, index, question: Vec::new(), answer: Vec::new(), hints: Vec::new() }
    }

    /// Takes a packet's body.
    pub fn take(&mut self, body: &[u8]) -> Step {
        self.packet(body).unwrap_or_else(|error| Step::End(Err(error)))
    }

    fn packet(&mut self, body: &[u8]) -> Result<Step, PublishError> {
        let Ok(ask) = decode::<Ask>(body) else { return misbehaved("it sent a packet that is no question") };
        let (part, is_last) = match ask {
            Ask::More if self.answer.is_empty() => return misbehaved("it wants more than there is"),
            Ask::More => return Ok(Step::Tell(self.tell(), Vec::new())),
            Ask::Part(part) => (part, false),
            Ask::Last(part) => (part, true),
        };
        if !self.answer.is_empty() {
            return misbehaved("it asks before it has its answer");
        }
        if self.question.len() + part.len() > QUESTION_BYTES_MAX {
            return misbehaved("it sent a question longer than any");
        }
        self.question.extend(part);
        if !is_last {
            return Ok(Step::Tell(Told::Taken, Vec::new()));
        }
        let question = std::mem::take(&mut self.question);
        let question = match decode::<Question>(&question) {
            Ok(Question::Done(walked)) => return self.done(walked).map(|walked| Step::End(Ok(walked))),
            Ok(Question::Failed(fault)) => return Err(self.failed(fault)),
            Ok(question) => question,
            Err(_) => return misbehaved("it sent what is no question"),
        };
        let (answer, files) = self.answer(question)?;
        self.answer = answer;
        Ok(Step::Tell(self.tell(), files))
    }

    fn tell(&mut self) -> Told {
        if self.answer.len() <= PART_BYTES_MAX {
            return Told::Last(std::mem::take(&mut self.answer));
        }
        let rest = self.answer.split_off(PART_BYTES_MAX);
        Told::Part(std::mem::replace(&mut self.answer, rest))
    }

    fn answer(&mut self, question: Question) -> Answered {
        match question {
            Question::Terms => say(&self.terms),
            Question::Enter(leaves, name) => {
                let name = name.map(name_of).transpose()?;
                self.local.leave_some(leaves as usize);
                let entered = self.local.enter(name.as_deref());
                say::<Entered>(&errno(entered.map(|here| (here, self.entries(0)))))
            }
            Question::Leave(count) => {
                self.local.leave_some(count as usize);
                say(&())
            }
            Question::Entries(from) => say(&self.entries(from)),
            Question::Open(names) => self.open(names),
            Question::Link(name) => say(&errno(self.local.link(&name_of(name)?))),
            Question::There(from) => say(&self.there(from)),
            Question::Put(blocks) => {
                for (is_large, frame) in &blocks {
                    self.put(*is_large, frame)?;
                }
                say(&())
            }
            Question::Fetch(address) => match self.local.store.stored(&address) {
                Ok(stored) => say(&stored),
                Err(why) => Err(self.damaged(why)),
            },
            Question::Known(wanted) if wanted.len() > KNOWN_MAX => misbehaved("it asks for more than it may"),
            Question::Known(wanted) => say(&self.local.known(&wanted)),
            Question::Remember(entries) => {
                for (path, signs, value) in entries {
                    self.local.remember(&path, &signs, &value)?;
                }
                say(&())
            }
            Question::Progress(progress) => {
                self.local.check()?;
                say(&self.local.progress(progress))
            }
            Question::Hints(part) => {
                if self.hints.len() + part.len() > HINTS_BYTES_MAX {
                    return misbehaved("it sent more hints than there can be");
                }
                self.hints.extend(part);
                say(&())
            }
            Question::Done(_) | Question::Failed(_) => misbehaved("it ends twice"),
        }
    }

    fn entries(&self, from: u64) -> OrErrno<Vec<Named>> {
        let entries = errno(self.local.entries(from))?.into_iter();
        Ok(entries.map(|entry| (entry.name.into_bytes(), errno(entry.looked))).collect())
    }

    fn open(&self, names: Vec<Vec<u8>>) -> Answered {
        if names.len() > OPENED_MAX {
            return misbehaved("it asks for more than it may");
        }
        let names = names.into_iter().map(name_of).collect::<Result<Vec<CString>, _>>()?;
        let names: Vec<&CStr> = names.iter().map(CString::as_c_str).collect();
        let mut files = Vec::new();
        let mut met: Vec<Met> = Vec::new();
        for opened in self.local.open(&names) {
            met.push(errno(opened.map(|opened| {
                files.push(opened.file);
                (opened.looked, opened.attributes)
            })));
        }
        Ok((encode(&met), files))
    }

    fn there(&self, from: u64) -> There {
        let entries = &self.index.entries;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(entries.len());
        let end = entries.len().min(from + THERE_MAX);
        let here = entries[from..end].iter().filter(|(_, place)| !place.is_at_origin());
        (here.map(|(key, _)| *key).collect(), (end < entries.len()).then_some(end as u64))
    }

    /// Takes a block if it is what it is called, and all that it refers to is there.
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

    fn done(&mut self, walked: Walked) -> Result<Walked, PublishError> {
        self.local.check()?;
        match Inode::load(self.local, &walked.root) {
            Ok(inode) if inode.kind == InodeKind::Directory => {}
            Ok(_) => return misbehaved("the root of its tree is no directory"),
            Err(_) => return misbehaved("the root of its tree is not there"),
        }
        let notes = walked.notes.iter().take(NOTES_MAX).map(|note| plain(note)).collect();
        let hints = Some(std::mem::take(&mut self.hints)).filter(|hints| !hints.is_empty());
        Ok(Walked { notes, hints, ..walked })
    }

    fn failed(&self, fault: Fault) -> PublishError {
        match fault {
            Fault::Local(path, why) => PublishError::Local { path: plain_path(path), why: plain(&why) },
            Fault::Changing(path) => PublishError::Changing { path: plain_path(path) },
            Fault::Unfit(path, why) => PublishError::Unfit { path: plain_path(path), why: plain(&why) },
            Fault::Damaged(why) => self.damaged(plain(&why)),
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
