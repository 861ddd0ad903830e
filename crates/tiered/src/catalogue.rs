//! The local catalogue of the objects in the bucket; and the manifests and the owner's note in the bucket
//! itself.
//!
//! ```text
//! catalogue, manifest, lost objects   first line | borsh of the value | SHA-256 of all before [32]
//! owner, head                         first line, then lines KEY VALUE
//! ```
//!
//! Invariant: the catalogue lists a segment only once the bucket has its objects. A manifest lists all
//! segments in the catalogue, and all condemned ones whose contents are not yet all in the bucket elsewhere.
//! A segment with punched holes is condemned in its former form and listed in its present one; if a number
//! has several forms, the manifest lists the one that was condemned first. The greatest number in manifests
//! never decreases, as long as nothing is lost.
//! was condemned first. The greatest number that manifests list never falls, so long as nothing is lost.

use crate::entry::{Entry, EntryV1, Form};
use crate::names::StoreId;
use crate::settings::TieredError;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_log::{Storage, SyncSite};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The catalogue's file.
pub(crate) const FILE: &str = "objects";
const FILE_NEW: &str = "objects-new";
const LOST: &str = "objects-lost";
const LOST_NEW: &str = "objects-lost-new";
const CATALOGUE: &[u8] = b"holdfast catalogue of objects 3\n";
/// The first line of catalogues in which no segment has holes; the rest of the format is the same.
const CATALOGUE_TWO: &[u8] = b"holdfast catalogue of objects 2\n";
const CATALOGUE_ONE: &[u8] = b"holdfast catalogue of objects 1\n";
const LOST_FIRST: &[u8] = b"holdfast lost objects 1\n";
const MANIFEST: &[u8] = b"holdfast manifest of segments 3\n";
/// The first line of manifests in which no segment has holes; the rest of the format is the same.
const MANIFEST_TWO: &[u8] = b"holdfast manifest of segments 2\n";
const MANIFEST_ONE: &[u8] = b"holdfast manifest of segments 1\n";
const OWNER: &str = "holdfast owner 1";
const HEAD: &str = "holdfast head 1";
const WRITTEN: SyncSite = SyncSite("objects: catalogue");

/// A segment that the log has removed, or the former form of one into which holes were punched.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct CondemnedSegment {
    pub(crate) entry: Entry,
    /// Everything that was moved out of it, or makes it dispensable, is in segments up to this number.
    pub(crate) after: u32,
    /// Since when no manifest lists it in this form, in seconds since 1970.
    pub(crate) unlisted_s: Option<u64>,
}

/// The local record of what the bucket has.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Catalogue {
    pub(crate) store: StoreId,
    /// The epoch of the last start that wrote, or was about to write, the owner's note.
    pub(crate) epoch: u64,
    /// Random bytes drawn at the start of that epoch.
    pub(crate) token: [u8; 16],
    /// Number of the last manifest.
    pub(crate) manifest: u64,
    pub(crate) segments: BTreeMap<u32, Entry>,
    pub(crate) condemned: Vec<CondemnedSegment>,
    /// Segments that the log has removed before the bucket had them, each with a number: everything moved out
    /// of it is in segments up to that.
    pub(crate) leaving: BTreeMap<u32, u32>,
}

/// The list of segments that make up a store.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Manifest {
    pub(crate) store: StoreId,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    pub(crate) segments: Vec<Entry>,
    /// The contents of the store's `FORMAT` file.
    pub(crate) format: Vec<u8>,
}

/// A condemned segment in the format before segments consisted of parts.
#[derive(BorshDeserialize)]
struct CondemnedSegmentV1 {
    entry: EntryV1,
    after: u32,
    unlisted_s: Option<u64>,
}

/// A catalogue in the format before segments consisted of parts.
#[derive(BorshDeserialize)]
struct CatalogueV1 {
    store: StoreId,
    epoch: u64,
    token: [u8; 16],
    manifest: u64,
    segments: BTreeMap<u32, EntryV1>,
    condemned: Vec<CondemnedSegmentV1>,
    leaving: BTreeMap<u32, u32>,
}

/// A manifest in the format before segments consisted of parts.
#[derive(BorshDeserialize)]
struct ManifestV1 {
    store: StoreId,
    epoch: u64,
    number: u64,
    segments: Vec<EntryV1>,
    format: Vec<u8>,
}

impl From<CondemnedSegmentV1> for CondemnedSegment {
    fn from(CondemnedSegmentV1 { entry, after, unlisted_s }: CondemnedSegmentV1) -> CondemnedSegment {
        CondemnedSegment { entry: entry.into(), after, unlisted_s }
    }
}

impl From<CatalogueV1> for Catalogue {
    fn from(one: CatalogueV1) -> Catalogue {
        let CatalogueV1 { store, epoch, token, manifest, segments, condemned, leaving } = one;
        let segments = segments.into_iter().map(|(number, entry)| (number, entry.into())).collect();
        let condemned = condemned.into_iter().map(CondemnedSegment::from).collect();
        Catalogue { store, epoch, token, manifest, segments, condemned, leaving }
    }
}

impl From<ManifestV1> for Manifest {
    fn from(ManifestV1 { store, epoch, number, segments, format }: ManifestV1) -> Manifest {
        let segments = segments.into_iter().map(Entry::from).collect();
        Manifest { store, epoch, number, segments, format }
    }
}

fn sealed<T: BorshSerialize>(first: &[u8], value: &T) -> Vec<u8> {
    let mut bytes = first.to_vec();
    value.serialize(&mut bytes).expect("encoding into memory cannot fail");
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

/// Why bytes cannot be read as a catalogue, manifest or list.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("it is too short")]
    Short,
    #[error("it is something else, or of a newer version")]
    Foreign,
    #[error("its checksum does not fit")]
    Checksum,
    #[error("{0}")]
    Encoding(String),
    #[error("the parts of segment {0} do not make it up")]
    Segment(u32),
}

fn opened<T: BorshDeserialize>(first: &[u8], bytes: &[u8]) -> Result<T, DecodeError> {
    let (rest, sum) = bytes.split_last_chunk::<32>().ok_or(DecodeError::Short)?;
    if !rest.starts_with(first) {
        return Err(DecodeError::Foreign);
    }
    if Sha256::digest(rest).as_slice() != sum {
        return Err(DecodeError::Checksum);
    }
    T::try_from_slice(&rest[first.len()..]).map_err(|error| DecodeError::Encoding(error.to_string()))
}

impl Manifest {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let first = if has_holes(&self.segments) { MANIFEST } else { MANIFEST_TWO };
        sealed(first, self)
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Manifest, DecodeError> {
        let manifest: Manifest = match bytes.starts_with(MANIFEST_ONE) {
            true => opened::<ManifestV1>(MANIFEST_ONE, bytes)?.into(),
            false if bytes.starts_with(MANIFEST_TWO) => opened(MANIFEST_TWO, bytes)?,
            false => opened(MANIFEST, bytes)?,
        };
        match manifest.segments.iter().find(|entry| !entry.is_sound()) {
            Some(entry) => Err(DecodeError::Segment(entry.number)),
            None => Ok(manifest),
        }
    }
}

impl Catalogue {
    pub(crate) fn new(store: StoreId) -> Catalogue {
        Catalogue {
            store,
            epoch: 0,
            token: [0; 16],
            manifest: 0,
            segments: BTreeMap::new(),
            condemned: Vec::new(),
            leaving: BTreeMap::new(),
        }
    }

    /// The catalogue in a directory; `None` if there is none.
    pub(crate) fn read(storage: &dyn Storage) -> Result<Option<Catalogue>, TieredError> {
        let Some(bytes) = read(storage, FILE)? else { return Ok(None) };
        let catalogue = match bytes.starts_with(CATALOGUE_ONE) {
            true => opened::<CatalogueV1>(CATALOGUE_ONE, &bytes).map(Catalogue::from),
            false if bytes.starts_with(CATALOGUE_TWO) => opened(CATALOGUE_TWO, &bytes),
            false => opened(CATALOGUE, &bytes),
        };
        catalogue.map(Some).map_err(|why| TieredError::Damaged {
            what: format!("the catalogue {}/{FILE}", storage.describe()),
            why: format!(
                "{why}. Move that directory away and start with --blocks-anew: the store is then found in the bucket"
            ),
        })
    }

    /// Replaces the catalogue's file, durably.
    pub(crate) fn write(&self, storage: &dyn Storage) -> io::Result<()> {
        let entries = self.segments.values().chain(self.condemned.iter().map(|one| &one.entry));
        let first = if has_holes(entries) { CATALOGUE } else { CATALOGUE_TWO };
        replace(storage, (FILE_NEW, FILE), &sealed(first, self))
    }

    /// The present form of a segment, or the last one if it was removed.
    pub(crate) fn last(&self, number: u32) -> Option<&Entry> {
        let removed = || self.condemned.iter().rfind(|one| one.entry.number == number);
        self.segments.get(&number).or_else(|| removed().map(|one| &one.entry))
    }

    /// The names of those objects of a condemned segment that none of its other forms uses.
    pub(crate) fn names_only_of(&self, condemned: &Entry) -> Vec<String> {
        let others = self.condemned.iter().map(|one| &one.entry).chain(self.segments.values());
        let others = others.filter(|other| other.number == condemned.number && *other != condemned);
        let kept: BTreeSet<String> = others.flat_map(|other| other.names(&self.store)).collect();
        let mut names = condemned.names(&self.store);
        names.retain(|name| !kept.contains(name));
        names
    }

    /// The next manifest: all segments of the catalogue, and all condemned ones whose contents may be nowhere
    /// else in the bucket.
    pub(crate) fn to_manifest(&self, format: Vec<u8>) -> Manifest {
        let mut segments = self.segments.clone();
        let listed = self.condemned.iter().filter(|one| one.unlisted_s.is_none());
        // The form that was condemned first is listed: it depends on nothing that may not be in the bucket
        // yet.
        segments.extend(listed.rev().map(|one| (one.entry.number, one.entry.clone())));
        let segments = segments.into_values().collect();
        Manifest { store: self.store, epoch: self.epoch, number: self.manifest + 1, segments, format }
    }
}

fn has_holes<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> bool {
    entries.into_iter().any(|entry| matches!(entry.form, Form::Pieces(_)))
}

/// The names of objects whose loss the operator has accepted.
///
/// # Errors
/// [`TieredError`]
pub(crate) fn read_lost(storage: &dyn Storage) -> Result<BTreeSet<String>, TieredError> {
    let Some(bytes) = read(storage, LOST)? else { return Ok(BTreeSet::new()) };
    opened(LOST_FIRST, &bytes).map_err(|why| TieredError::Damaged {
        what: format!("the list of objects whose loss was accepted, {}/{LOST}", storage.describe()),
        why: format!("{why}. Remove it, and start with --blocks-anew to accept what is missing once more"),
    })
}

/// Writes the names of lost objects, durably.
pub(crate) fn write_lost(storage: &dyn Storage, lost: &BTreeSet<String>) -> io::Result<()> {
    replace(storage, (LOST_NEW, LOST), &sealed(LOST_FIRST, lost))
}

/// The whole contents of a file; `None` if there is none.
fn read(storage: &dyn Storage, name: &str) -> Result<Option<Vec<u8>>, TieredError> {
    let file = match storage.open(name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(TieredError::io("opening", name)(error)),
    };
    let length = file.len().map_err(TieredError::io("measuring", name))?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(1 << 30)];
    let count = file.read_at(0, &mut bytes).map_err(TieredError::io("reading", name))?;
    bytes.truncate(count);
    Ok(Some(bytes))
}

/// Replaces a file, durably.
fn replace(storage: &dyn Storage, (new, name): (&str, &str), bytes: &[u8]) -> io::Result<()> {
    match storage.remove(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = storage.create(new)?;
    file.write_at(0, bytes)?;
    file.sync(WRITTEN)?;
    storage.rename(new, name)?;
    storage.sync_dir(WRITTEN)
}

/// The owner's note: which server writes to a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) store: StoreId,
    pub(crate) epoch: u64,
    pub(crate) token: [u8; 16],
    pub(crate) host: String,
    pub(crate) since_s: u64,
}

impl Owner {
    pub(crate) fn to_text(&self) -> String {
        format!(
            "{OWNER}\nstore {}\nepoch {}\ntoken {}\nhost {}\nsince {}\n",
            crate::sign::hex(&self.store),
            self.epoch,
            crate::sign::hex(&self.token),
            self.host,
            self.since_s
        )
    }

    pub(crate) fn of_text(bytes: &[u8]) -> Option<Owner> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        if lines.next() != Some(OWNER) {
            return None;
        }
        let mut value = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned);
        let owner = Owner {
            store: id_of(&value("store")?)?,
            epoch: value("epoch")?.parse().ok()?,
            token: id_of(&value("token")?)?,
            host: value("host")?,
            since_s: value("since")?.parse().ok()?,
        };
        text.ends_with('\n').then_some(owner)
    }

    /// A description of the owner, for messages.
    pub(crate) fn description(&self) -> String {
        let time = crate::sign::timestamp(self.since_s);
        format!("a server on {}, which began there at {time}", self.host)
    }
}

/// Names the valid one of the manifests that the server of an epoch wrote. Its own name follows from the
/// epoch, so it is found even where listings lag. Only that server writes it. The owner's note could not
/// serve for this: another server may have just replaced it, and writing it again would undo that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) store: StoreId,
    pub(crate) manifest: u64,
}

impl Head {
    pub(crate) fn to_text(self) -> String {
        format!("{HEAD}\nstore {}\nmanifest {}\n", crate::sign::hex(&self.store), self.manifest)
    }

    pub(crate) fn of_text(bytes: &[u8]) -> Option<Head> {
        let rest = std::str::from_utf8(bytes).ok()?.strip_prefix(HEAD)?.strip_prefix("\nstore ")?;
        let (store, manifest) = rest.strip_suffix('\n')?.split_once("\nmanifest ")?;
        Some(Head { store: id_of(store)?, manifest: manifest.parse().ok()? })
    }
}

fn id_of(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut id = [0; 16];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Part, Piece, Source};
    use holdfast_log::LocalStorage;

    fn bytes_of(hex: &str) -> Vec<u8> {
        let hex: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        hex.chunks(2).map(byte).collect()
    }

    /// Proves: manifests with and without holes are encoded as the golden ones, and manifests and catalogues
    /// from before segments consisted of parts can be read.
    #[test]
    fn earlier_ones_are_read() {
        let whole = |number, sum, outline| Entry {
            number,
            epoch: 2,
            length: 100,
            form: Form::Whole { sum: [sum; 32] },
            outline,
        };
        let parts = vec![Part { length: 60, is_joined: false }, Part { length: 40, is_joined: true }];
        let manifest = Manifest {
            store: [1; 16],
            epoch: 2,
            number: 7,
            segments: vec![
                whole(3, 7, Some([6; 16])),
                Entry { form: Form::Parts(parts), ..whole(4, 0, None) },
            ],
            format: b"format".to_vec(),
        };
        assert_eq!(manifest.to_bytes(), bytes_of(include_str!("../tests/golden/manifest-2.hex")));
        let pieces = vec![
            Piece { offset: 0, length: 40, source: Source::Part { is_joined: true } },
            Piece { offset: 60, length: 40, source: Source::Copied { epoch: 9 } },
        ];
        let mut punched = manifest.clone();
        punched.segments.push(Entry { form: Form::Pieces(pieces), ..whole(5, 0, None) });
        assert_eq!(punched.to_bytes(), bytes_of(include_str!("../tests/golden/manifest-3.hex")));
        assert_eq!(Manifest::of_bytes(&punched.to_bytes()), Ok(punched));
        let mut unsound = manifest.clone();
        unsound.segments[1].length += 1;
        assert_eq!(Manifest::of_bytes(&unsound.to_bytes()), Err(DecodeError::Segment(4)));
        let one = bytes_of(include_str!("../tests/golden/manifest-1.hex"));
        let segments = vec![whole(3, 7, None), whole(4, 8, None)];
        assert_eq!(Manifest::of_bytes(&one), Ok(Manifest { segments, ..manifest }));
        let folder = tempfile::tempdir().unwrap();
        let storage = LocalStorage::open(folder.path()).unwrap();
        let one = bytes_of(include_str!("../tests/golden/catalogue-1.hex"));
        std::fs::write(folder.path().join(FILE), one).unwrap();
        let catalogue = Catalogue {
            store: [1; 16],
            epoch: 2,
            token: [9; 16],
            manifest: 6,
            segments: BTreeMap::from([(4, whole(4, 8, None))]),
            condemned: vec![CondemnedSegment { entry: whole(3, 7, None), after: 5, unlisted_s: Some(1234) }],
            leaving: BTreeMap::from([(6, 8)]),
        };
        assert_eq!(Catalogue::read(&storage).unwrap(), Some(catalogue));
    }

    /// Proves: if holes were punched into a segment again and again and it was removed then, a manifest lists
    /// the earliest form that it still has somewhere.
    #[test]
    fn what_was_condemned_first_is_listed() {
        let entry = |sum| Entry {
            number: 4,
            epoch: 2,
            length: 100,
            form: Form::Whole { sum: [sum; 32] },
            outline: None,
        };
        let mut catalogue = Catalogue::new([1; 16]);
        catalogue.segments.insert(4, entry(3));
        let condemned = |sum| CondemnedSegment { entry: entry(sum), after: 5, unlisted_s: None };
        catalogue.condemned.extend([condemned(1), condemned(2)]);
        let listed = |catalogue: &Catalogue| catalogue.to_manifest(Vec::new()).segments;
        assert_eq!(listed(&catalogue), [entry(1)]);
        catalogue.condemned[0].unlisted_s = Some(7);
        assert_eq!(listed(&catalogue), [entry(2)]);
        catalogue.segments.clear();
        assert_eq!(listed(&catalogue), [entry(2)]);
        catalogue.condemned[1].unlisted_s = Some(8);
        assert_eq!(listed(&catalogue), []);
    }

    /// Proves: encoded values are decoded again, and no altered or shortened copy is.
    #[test]
    fn altered_copies_are_refused() {
        let entry =
            Entry { number: 4, epoch: 2, length: 100, form: Form::Whole { sum: [7; 32] }, outline: None };
        let mut catalogue = Catalogue::new([1; 16]);
        catalogue.segments.insert(4, entry.clone());
        let gone = Entry { number: 3, ..entry.clone() };
        catalogue.condemned.push(CondemnedSegment { entry: gone.clone(), after: 5, unlisted_s: None });
        let manifest = catalogue.to_manifest(b"format".to_vec());
        assert_eq!(manifest.segments, [gone, entry]);
        let bytes = manifest.to_bytes();
        assert_eq!(Manifest::of_bytes(&bytes).unwrap(), manifest);
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(Manifest::of_bytes(&altered).is_err());
            assert!(Manifest::of_bytes(&bytes[..at]).is_err());
        }
        let folder = tempfile::tempdir().unwrap();
        let storage = LocalStorage::open(folder.path()).unwrap();
        assert_eq!(Catalogue::read(&storage).unwrap(), None);
        catalogue.write(&storage).unwrap();
        assert_eq!(Catalogue::read(&storage).unwrap(), Some(catalogue));
        std::fs::write(folder.path().join(FILE), "nonsense").unwrap();
        assert!(matches!(Catalogue::read(&storage), Err(TieredError::Damaged { .. })));
    }

    /// Proves: the owner's note and a head are read as they were written, and a part of one is refused.
    #[test]
    fn notes_come_back() {
        let owner = Owner { store: [1; 16], epoch: 7, token: [2; 16], host: "box one".into(), since_s: 9 };
        let text = owner.to_text();
        assert_eq!(Owner::of_text(text.as_bytes()), Some(owner));
        for at in 0..text.len() {
            assert_eq!(Owner::of_text(&text.as_bytes()[..at]), None);
        }
        let head = Head { store: [1; 16], manifest: 70 };
        let text = head.to_text();
        assert_eq!(Head::of_text(text.as_bytes()), Some(head));
        for at in 0..text.len() {
            assert_eq!(Head::of_text(&text.as_bytes()[..at]), None);
        }
    }
}
