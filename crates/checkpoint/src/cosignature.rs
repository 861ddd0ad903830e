//! Cosignatures (c2sp.org/tlog-cosignature, the Ed25519 kind): a witness states that, at a time by its clock,
//! this was the newest head of a log that it had seen, and that all heads of that log it has ever signed
//! extend each other.

use crate::note::{KeyKind, Note, NoteSignature, VerifierKey};
use holdfast_crypto::{Signature, SigningKey};

/// Bytes of a cosignature: a time and an Ed25519 signature.
const BYTES: usize = 8 + 64;

fn message(text: &str, time_s: u64) -> String {
    format!("cosignature/v1\ntime {time_s}\n{text}")
}

/// A witness's line under the text of a checkpoint, at a time in seconds since 1970. `name` is the witness's.
///
/// # Panics
/// If `witness` is not the key's verifier.
pub fn cosign(witness: &VerifierKey, key: &SigningKey, text: &str, time_s: u64) -> NoteSignature {
    assert!(witness.key() == key.public() && witness.kind() == KeyKind::Cosignature, "another witness's key");
    let signature = key.sign_text(&message(text, time_s));
    let mut bytes = time_s.to_be_bytes().to_vec();
    bytes.extend(signature.0);
    witness.line(&bytes)
}

/// When a witness signed this text, in seconds since 1970 by its clock; `None` if the line is not its
/// cosignature.
pub fn verify(witness: &VerifierKey, text: &str, line: &NoteSignature) -> Option<u64> {
    if witness.kind() != KeyKind::Cosignature || !witness.is_meant(line) || line.signature.len() != BYTES {
        return None;
    }
    let (time, signature) = line.signature.split_first_chunk::<8>()?;
    let time_s = u64::from_be_bytes(*time);
    let signature = Signature(signature.try_into().ok()?);
    let good = time_s >> 63 == 0 && witness.key().verify_text(&message(text, time_s), &signature);
    good.then_some(time_s)
}

/// When a witness last signed a note: the newest time in its lines.
pub fn newest(witness: &VerifierKey, note: &Note) -> Option<u64> {
    note.signatures.iter().filter_map(|line| verify(witness, &note.text, line)).max()
}
