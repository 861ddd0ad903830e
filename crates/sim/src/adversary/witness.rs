//! A witness without its sockets, which sees one branch only.

use super::world::{Server, server_key};
use holdfast_checkpoint::checkpoint::log_key;
use holdfast_checkpoint::cosignature;
use holdfast_checkpoint::judge::{Refusal, authenticate};
use holdfast_checkpoint::note::VerifierKey;
use holdfast_checkpoint::submission::Submission;
use holdfast_crypto::Digest;
use holdfast_witness::state::CosignError;
use holdfast_witness::{WitnessError, WitnessReply, WitnessState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A witness.
pub struct Witness {
    state: WitnessState,
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
        WitnessState::init(&path, "witness.example/w1", None).expect("room for its book");
        Witness { state: WitnessState::open(&path).expect("it was just made"), _folder: folder }
    }

    /// The key by which its signatures are verified.
    pub fn verifier(&self) -> VerifierKey {
        self.state.verifier().clone()
    }

    /// Signs a server's newest head.
    ///
    /// # Panics
    /// If the server shows something else than before.
    pub fn sign_for(&self, server: &Server, id: &Digest) {
        let host = server.host();
        let file_system = host.file_systems().remove(0);
        let logs = [log_key(id, server_key().public())];
        let signed = file_system.request_cosignature(0, Duration::ZERO, &mut |sent| self.answer(&logs, sent));
        signed.expect("an honest server's head is signed");
    }

    fn answer(&self, logs: &[VerifierKey], sent: &Submission) -> Result<WitnessReply, WitnessError> {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let signed = authenticate(&sent.to_string(), logs)
            .map_err(CosignError::from)
            .and_then(|authentic| self.state.cosign(&authentic, time_s));
        match signed {
            Ok(line) => {
                let time_s = cosignature::verify(self.state.verifier(), &sent.note.text, &line);
                Ok(WitnessReply::Cosigned(line, time_s.expect("it has just signed")))
            }
            Err(CosignError::Refused(Refusal::OldSize(size))) => Ok(WitnessReply::OldSize(size)),
            Err(CosignError::Refused(refusal)) => {
                Err(WitnessError::Refused { status: refusal.status(), text: refusal.to_string() })
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
