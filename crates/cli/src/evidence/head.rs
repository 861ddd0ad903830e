//! Evidence about a head: what notes signed by a server prove, checked without any other files.

use holdfast_checkpoint::checkpoint::{Checkpoint, log_key};
use holdfast_checkpoint::note::Note;
use holdfast_crypto::{Digest, decode};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::WitnessedHead;

/// What a head of another history proves, in words, and whether it convicts the server. Whether the server
/// signed it is checked with the list of keys that the superuser signed. What the server sent before is only
/// the device's statement, unless the server has signed that too.
pub fn judge(file_system: &Digest, floor: &[u8], shown: &[u8], earlier: Option<&str>) -> (bool, String) {
    let (Ok(floor), Ok(shown)) = (decode::<Floor>(floor), decode::<WitnessedHead>(shown)) else {
        return (false, "what is kept cannot be read: this proves nothing".to_owned());
    };
    let list = floor.server_keys.as_ref().filter(|list| list.verify(&floor.superuser));
    let is_superuser = floor.file_system() == *file_system;
    let servers = list.filter(|_| is_superuser).map_or(&[][..], |list| &list.value.keys);
    let signed = |text: &str| -> Option<Checkpoint> {
        let note: Note = text.parse().ok()?;
        let by_server = servers.iter().any(|key| note.is_signed_by(&log_key(&floor.epoch, *key)));
        note.text.parse().ok().filter(|_| by_server)
    };
    let Some(head) = signed(&shown.note) else {
        return (false, "the head kept is not signed by a listed server: this proves nothing".to_owned());
    };
    match earlier.and_then(signed) {
        Some(earlier) if earlier.head.size == head.head.size && earlier.head != head.head => {
            let text = format!(
                "the server has signed two different histories of {} operations: both notes and its keys, as the \
                 superuser signed them, are kept here, and convict it",
                head.head.size
            );
            (true, text)
        }
        _ => {
            let text = format!(
                "the server has signed the head of {} operations that is kept here; that it showed this device another \
                 history of {} is as the device says",
                head.head.size,
                floor.log().size
            );
            (false, text)
        }
    }
}
