//! A witness without its sockets, who sees one branch only.

use super::world::{Server, server_key};
use holdfast_checkpoint::checkpoint::log_key;
use holdfast_checkpoint::cosignature;
use holdfast_checkpoint::judge::{Refusal, authenticate};
use holdfast_checkpoint::note::VerifierKey;
use holdfast_checkpoint::submission::Submission;
use holdfast_crypto::Digest;
use holdfast_witness::book::CosignError;
use holdfast_witness::{AskError, Asked, Book};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A witness.
pub struct Witness {
    book: Book,
    _folder: tempfile::TempDir,
}

impl Witness {
    /// A new one.
    ///
    /// # Panics
    /// If there is no room for its files.
    pub fn new() -> Witness {
        let folder = tempfile::tempdir().expect("room for a folder");
        let path = folder.path().join("witness");
        Book::init(&path, "witness.example/w1", None).expect("room for its book");
        Witness { book: Book::open(&path).expect("it was just made"), _folder: folder }
    }

    /// How its signatures are verified.
    pub fn verifier(&self) -> VerifierKey {
        self.book.verifier().clone()
    }

    /// Signs a server's newest head.
    ///
    /// # Panics
    /// If the server shows something else than before.
    pub fn sign_for(&self, server: &Server, id: &Digest) {
        let host = server.host();
        let file_system = host.file_systems().remove(0);
        let logs = [log_key(id, server_key().public())];
        let signed = host.have_signed(&file_system, 0, Duration::ZERO, &mut |sent| self.answer(&logs, sent));
        signed.expect("an honest server's head is signed");
    }

    fn answer(&self, logs: &[VerifierKey], sent: &Submission) -> Result<Asked, AskError> {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let signed = authenticate(&sent.to_string(), logs)
            .map_err(CosignError::from)
            .and_then(|authentic| self.book.cosign(&authentic, time_s));
        match signed {
            Ok(line) => {
                let time_s = cosignature::verify(self.book.verifier(), &sent.note.text, &line);
                Ok(Asked::Cosigned(line, time_s.expect("it has just signed")))
            }
            Err(CosignError::Refused(Refusal::OldSize(size))) => Ok(Asked::OldSize(size)),
            Err(CosignError::Refused(refusal)) => {
                Err(AskError::Refused { status: refusal.status(), text: refusal.to_string() })
            }
            Err(error) => panic!("its book cannot be written: {error}"),
        }
    }
}

impl Default for Witness {
    fn default() -> Witness {
        Witness::new()
    }
}
