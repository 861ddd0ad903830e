//! A client that has a witness co-sign: one `add-checkpoint` over HTTP or HTTPS.
//!
//! The witness is not trusted here: its reply is bounded, and counts only if it is a valid cosignature of
//! what was sent. A certificate confirms only the host's name.

use holdfast_checkpoint::cosignature;
use holdfast_checkpoint::note::{NoteSignature, SIGNATURES_MAX, VerifierKey};
use holdfast_checkpoint::submission::Submission;
use holdfast_http_client::{Authorities, client};
use std::time::Duration;
use ureq::Agent;

/// Longest reply in bytes.
const ANSWER_BYTES_MAX: u64 = 32 << 10;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no cosignature.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WitnessError {
    /// The URL is not one of a witness.
    #[error("'{0}' is not where a witness can be asked: it must be http:// or https://, without ? and #")]
    Url(String),
    /// The witness does not reply.
    #[error("it does not answer: {0}")]
    Unreachable(String),
    /// The witness refuses.
    #[error("it refuses with status {status}: {text}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The text of the reply.
        text: String,
    },
    /// The witness has signed something else, or with another key.
    #[error("its answer has no cosignature by {0} of what was sent")]
    NoCosignature(String),
}

/// The reply of a witness.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WitnessReply {
    /// The witness has co-signed, at this time in seconds since 1970.
    Cosigned(NoteSignature, u64),
    /// The head that the witness signed last has this size: it needs a proof from there.
    OldSize(u64),
}

/// A client of one witness.
pub struct WitnessClient {
    url: String,
    witness: VerifierKey,
    agent: Agent,
}

impl WitnessClient {
    /// `url` is the witness's submission prefix.
    ///
    /// # Errors
    /// [`WitnessError::Url`].
    pub fn new(url: &str, witness: VerifierKey) -> Result<WitnessClient, WitnessError> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let is_good = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
        if !is_good || url.contains(['?', '#', '@', ' ']) {
            return Err(WitnessError::Url(url.to_owned()));
        }
        let config = client(Authorities::of_url(url), None).timeout_global(Some(PATIENCE)).build();
        Ok(WitnessClient {
            url: format!("{}/add-checkpoint", url.trim_end_matches('/')),
            witness,
            agent: config.into(),
        })
    }

    /// The witness's verifier key.
    pub fn witness(&self) -> &VerifierKey {
        &self.witness
    }

    /// Has the witness co-sign a checkpoint.
    ///
    /// # Errors
    /// [`WitnessError`].
    pub fn submit(&self, submission: &Submission) -> Result<WitnessReply, WitnessError> {
        let unreachable = |error: ureq::Error| WitnessError::Unreachable(error.to_string());
        let sent =
            self.agent.post(&self.url).header("content-type", "text/plain").send(submission.to_string());
        let mut response = sent.map_err(unreachable)?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(unreachable)?;
        match status {
            200 => self.cosignature(submission, &text),
            409 => match text.trim_end().parse() {
                Ok(size) if size != submission.old_size => Ok(WitnessReply::OldSize(size)),
                _ => Err(refused(status, &text)),
            },
            status => Err(refused(status, &text)),
        }
    }

    fn cosignature(&self, submission: &Submission, text: &str) -> Result<WitnessReply, WitnessError> {
        let lines = text.lines().take(SIGNATURES_MAX).filter_map(|line| line.parse::<NoteSignature>().ok());
        let signed = lines.filter_map(|line| {
            let time_s = cosignature::verify(&self.witness, &submission.note.text, &line)?;
            Some(WitnessReply::Cosigned(line, time_s))
        });
        signed.last().ok_or_else(|| WitnessError::NoCosignature(self.witness.to_string()))
    }
}

fn refused(status: u16, text: &str) -> WitnessError {
    let text = text.chars().filter(|c| !c.is_control()).take(200).collect();
    WitnessError::Refused { status, text }
}
