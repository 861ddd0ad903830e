//! The names of objects, below the prefix:
//!
//! ```text
//! owner                                  which server writes here; this object is overwritten
//! ID/segment-NNNNNNNNNN-EPOCH-SUM        a sealed segment, if it is one object
//! ID/manifest-EPOCH-NUMBER               which segments make up the store
//! ID/head-EPOCH                          which of that start's manifests is valid
//! ID/tail-NNNNNNNNNN-EPOCH-OFFSET        a part of a segment, sent while the segment was being written
//! ID/part-NNNNNNNNNN-EPOCH-OFFSET-LENGTH a part of a segment, joined from several of those
//! ID/piece-NNNNNNNNNN-EPOCH-OFFSET-LENGTH what is left of a segment between two holes, copied by the store
//! ID/outline-NNNNNNNNNN-EPOCH-SUM        a sealed segment without the bodies of its records
//! ```
//!
//! ID is the store's name, drawn when it was made; EPOCH counts the starts of its server; SUM is the
//! beginning of the segment's SHA-256, or the end of its outline. All numbers have leading zeros, so names
//! sort as numbers do.

pub(crate) const OWNER: &str = "owner";

/// A store's name.
pub(crate) type StoreId = [u8; 16];

fn of(store: &StoreId) -> String {
    crate::sign::hex(store)
}

/// The beginning of the names of all objects of a store.
pub(crate) fn store(store: &StoreId) -> String {
    format!("{}/", of(store))
}

pub(crate) fn segment(store: &StoreId, number: u32, epoch: u64, sum: &[u8; 32]) -> String {
    format!("{}/segment-{number:010}-{epoch:010}-{}", of(store), crate::sign::hex(&sum[..16]))
}

/// The beginning of the names of all segments of a store.
pub(crate) fn segments(store: &StoreId) -> String {
    format!("{}/segment-", of(store))
}

/// The name of a part of a segment, joined from several.
pub(crate) fn part(store: &StoreId, segment: u32, epoch: u64, offset: u64, length: u32) -> String {
    format!("{}{segment:010}-{epoch:010}-{offset:010}-{length:010}", parts(store))
}

/// The beginning of the names of all such parts of a store.
pub(crate) fn parts(store: &StoreId) -> String {
    format!("{}/part-", of(store))
}

/// The name of what is left of a segment between two holes.
pub(crate) fn piece(store: &StoreId, segment: u32, epoch: u64, offset: u64, length: u32) -> String {
    format!("{}{segment:010}-{epoch:010}-{offset:010}-{length:010}", pieces(store))
}

/// The beginning of the names of all such pieces of a store.
pub(crate) fn pieces(store: &StoreId) -> String {
    format!("{}/piece-", of(store))
}

/// The beginning of the names of all pieces of a segment.
pub(crate) fn pieces_of(store: &StoreId, segment: u32) -> String {
    format!("{}{segment:010}-", pieces(store))
}

/// The name of the outline of a segment: a sealed segment without the bodies of its records.
pub(crate) fn outline(store: &StoreId, segment: u32, epoch: u64, sum: &[u8; 16]) -> String {
    format!("{}{segment:010}-{epoch:010}-{}", outlines(store), crate::sign::hex(sum))
}

/// The beginning of the names of all outlines of a store.
pub(crate) fn outlines(store: &StoreId) -> String {
    format!("{}/outline-", of(store))
}

pub(crate) fn manifests(store: &StoreId) -> String {
    format!("{}/manifest-", of(store))
}

pub(crate) fn manifest(store: &StoreId, epoch: u64, number: u64) -> String {
    format!("{}{epoch:010}-{number:020}", manifests(store))
}

/// The epoch and number in the name of a manifest.
pub(crate) fn manifest_of(store: &StoreId, name: &str) -> Option<(u64, u64)> {
    let (epoch, number) = name.strip_prefix(&manifests(store))?.split_once('-')?;
    Some((epoch.parse().ok()?, number.parse().ok()?))
}

/// The name of the head of an epoch, which says which manifest is valid.
pub(crate) fn head(store: &StoreId, epoch: u64) -> String {
    format!("{}{epoch:010}", heads(store))
}

/// The beginning of the names of all heads of a store.
pub(crate) fn heads(store: &StoreId) -> String {
    format!("{}/head-", of(store))
}

/// The epoch in the name of a head.
pub(crate) fn head_of(store: &StoreId, name: &str) -> Option<u64> {
    name.strip_prefix(&heads(store))?.parse().ok()
}

/// The epoch in the name of a manifest or a head.
pub(crate) fn epoch_of(store: &StoreId, name: &str) -> Option<u64> {
    head_of(store, name).or_else(|| manifest_of(store, name).map(|(epoch, _)| epoch))
}

pub(crate) fn tails(store: &StoreId) -> String {
    format!("{}/tail-", of(store))
}

pub(crate) fn tail(store: &StoreId, segment: u32, epoch: u64, offset: u64) -> String {
    format!("{}{offset:010}", tails_of(store, segment, epoch))
}

/// The beginning of the names of the tails of a segment that were sent in an epoch.
pub(crate) fn tails_of(store: &StoreId, segment: u32, epoch: u64) -> String {
    format!("{}{segment:010}-{epoch:010}-", tails(store))
}

/// The segment, epoch and offset in the name of a tail.
pub(crate) fn tail_of(store: &StoreId, name: &str) -> Option<(u32, u64, u64)> {
    let mut parts = name.strip_prefix(&tails(store))?.split('-');
    let found = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: names are parsed as they were formatted, and other text is not taken for a name.
    #[test]
    fn names_come_back() {
        let id = [0xab; 16];
        assert_eq!(manifest_of(&id, &manifest(&id, 3, 99)), Some((3, 99)));
        assert_eq!(tail_of(&id, &tail(&id, 7, 3, 4096)), Some((7, 3, 4096)));
        assert_eq!((head_of(&id, &head(&id, 12)), head_of(&id, &manifest(&id, 3, 99))), (Some(12), None));
        assert_eq!(tail_of(&[1; 16], &tail(&id, 7, 3, 4096)), None);
        assert_eq!(tail_of(&id, &format!("{}1-2-3-4", tails(&id))), None);
        assert!(manifest(&id, 2, 10) < manifest(&id, 2, 11) && manifest(&id, 9, 10) < manifest(&id, 10, 1));
    }
}
