//! A signed release: every byte is verified here before it is served, and a release that is no longer in
//! force is not served.

use super::view::{
    Banner, BannerStyle, Change, Content, Kind, Listing, OpenFile, PathTarget, Row, TreeSummary, View,
    ViewError,
};
use crate::accept::{ExpiredPolicy, Warning};
use crate::admit::AdmitError;
use crate::form::{self, Kind as _};
use crate::layout;
use crate::mirror::MirrorState;
use crate::moment::moment;
use crate::open::{OpenError, Release, now_s};
use crate::record::{RootFile, authenticate};
use crate::signing::Signable;
use crate::tree::{Node, PathLookup, Tree};
use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::{
    Content as Holds, ContentError, Inode, InodeKind, MapRoot, MerkleMap, Misuse, SourceError, Value,
};
use holdfast_crypto::keyfile::fingerprint;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time for which two releases are compared.
const COMPARING_MAX: Duration = Duration::from_secs(10);

/// A view of a release.
pub struct ReleaseView {
    release: Release,
    /// Why the last attempt to ask the mirrors for the record in force failed.
    behind: Mutex<Option<String>>,
    /// Why the release must not be used: it is revoked or has expired.
    over: Mutex<Option<String>>,
}

impl ReleaseView {
    /// A view of an open release.
    pub fn new(release: Release) -> ReleaseView {
        ReleaseView { release, behind: Mutex::default(), over: Mutex::default() }
    }

    /// Asks the mirrors for the record in force. Later pages reflect the result.
    pub fn refresh(&self) {
        match self.release.refresh() {
            Ok(_) => *self.behind.lock() = None,
            Err(error @ OpenError::Final(AdmitError::Revoked { .. })) => {
                *self.over.lock() = Some(error.to_string())
            }
            Err(error) => *self.behind.lock() = Some(error.to_string()),
        }
    }

    /// Why nothing of the release may be served any more; `None` if it may.
    fn ended(&self) -> Option<String> {
        if let Some(over) = &*self.over.lock() {
            return Some(over.clone());
        }
        let accepted = &self.release.current().accepted;
        let until_s = accepted.valid_until_s;
        let was_stale = accepted.warnings.iter().any(|warning| matches!(warning, Warning::Stale { .. }));
        let allowed = was_stale || self.release.stale() == ExpiredPolicy::Allow && !self.has_certificates();
        (now_s() > until_s && !allowed).then(|| {
            format!(
                "the release expired at {}, and no mirror has a renewal; what it held may be OLD",
                moment(until_s)
            )
        })
    }

    fn has_certificates(&self) -> bool {
        // If the key sets cannot be read, the release is treated as a certificate directory.
        self.release.trust().chain().ok().flatten().is_none_or(|chain| chain.current().certificates)
    }

    fn tree(&self) -> Result<Tree, ViewError> {
        match self.ended() {
            Some(why) => Err(ViewError { why, is_false: false }),
            None => Ok(self.release.current().tree.clone()),
        }
    }

    /// The directory at a path.
    fn directory(&self, tree: &Tree, path: &[Vec<u8>]) -> Result<Node, ViewError> {
        match tree.resolve(&path.join(&b'/'), true).map_err(view_error)? {
            PathLookup::Node(node) if node.inode.kind == InodeKind::Directory => Ok(node),
            _ => Err(ViewError { why: "it is no directory".to_owned(), is_false: false }),
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let current = self.release.current();
        let record = &current.accepted.record;
        let mut facts = vec![("ID", self.release.id().to_string())];
        if !record.note.is_empty() {
            facts.push(("Title", record.note.clone()));
        }
        facts.push(("Release", record.sequence.to_string()));
        facts.push(("Signed", moment(record.issued_s)));
        facts.push(("Counts until", moment(current.accepted.valid_until_s)));
        let trust = self.release.trust();
        if let (Ok(Some(chain)), Ok(Some(archived))) = (trust.chain(), trust.as_of(u64::MAX)) {
            let set = chain.current();
            let (threshold, count) = (set.role.threshold, set.role.keys.len());
            facts.push(("Key set", format!("{}, of which {threshold} of {count} must sign", set.number)));
            for key in &set.role.keys {
                let signed = archived.file.record.signatures.contains_key(key);
                facts.push((if signed { "Signed by" } else { "Did not sign" }, fingerprint(key)));
            }
            let renewers = archived.file.freshness.iter().flat_map(|renewal| renewal.signatures.keys());
            facts.extend(renewers.map(|key| ("Renewed by", fingerprint(key))));
        }
        facts.extend(self.release.mirrors().statuses().into_iter().map(|status| ("Mirror", status.mirror)));
        facts
    }
}

/// Converts an error, stating whether content was altered or only unavailable.
fn view_error(error: ContentError) -> ViewError {
    match error {
        ContentError::Source(SourceError::Unreachable(_, why)) => ViewError { why, is_false: false },
        ContentError::Source(SourceError::Missing(address)) => {
            ViewError { why: format!("no mirror has block {}", address.short()), is_false: false }
        }
        ContentError::Misuse(misuse) => ViewError { why: misuse.to_string(), is_false: false },
        error => ViewError { why: error.to_string(), is_false: true },
    }
}

struct VerifiedFile {
    tree: Tree,
    node: Node,
}

impl Content for VerifiedFile {
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, ViewError> {
        self.tree.read(&self.node, offset, length).map_err(view_error)
    }
}

fn kind_of(kind: InodeKind) -> Kind {
    match kind {
        InodeKind::File => Kind::File,
        InodeKind::Directory => Kind::Directory,
        InodeKind::Symlink => Kind::Link,
        InodeKind::Fifo => Kind::Other("fifo"),
        InodeKind::Socket => Kind::Other("socket"),
        InodeKind::CharDevice | InodeKind::BlockDevice => Kind::Other("device"),
    }
}

fn row(name: Vec<u8>, inode: &Inode) -> Row {
    Row {
        name,
        kind: kind_of(inode.kind),
        size: inode.size,
        modified_s: inode.modified_ns.div_euclid(1_000_000_000),
        target: match &inode.content {
            Holds::Target(target) => Some(target.clone()),
            _ => None,
        },
    }
}

impl View for ReleaseView {
    fn about(&self) -> TreeSummary {
        let current = self.release.current();
        let accepted = &current.accepted;
        let mut banners = Vec::new();
        let ended = self.ended();
        let usable = ended.is_none();
        if let Some(why) = ended {
            banners.push(Banner {
                mood: BannerStyle::Bad,
                head: "Nothing of this release is shown.".into(),
                lines: vec![why],
            });
        }
        let mut notes: Vec<String> = accepted.warnings.iter().map(ToString::to_string).collect();
        notes.extend(current.notices.iter().cloned());
        notes.extend(self.behind.lock().clone());
        for status in self.release.mirrors().statuses() {
            if status.state == MirrorState::Dropped {
                let why = status.why.unwrap_or_default();
                notes.push(format!(
                    "{} sent what the publisher did not sign, and is not asked any more: {why}",
                    status.mirror
                ));
            }
        }
        if !notes.is_empty() {
            banners.push(Banner { mood: BannerStyle::Warn, head: "Please note".into(), lines: notes });
        }
        if usable {
            let head = format!(
                "Release {}, current until {}.",
                accepted.record.sequence,
                moment(accepted.valid_until_s)
            );
            let line = "This gateway has verified signatures and freshness, and verifies every byte of a file before it sends it. You \
                        trust it, and the way to it; to check for yourself, use the verifier.";
            banners.push(Banner { mood: BannerStyle::Good, head, lines: vec![line.to_owned()] });
        }
        let title = match accepted.record.note.as_str() {
            "" => format!("Release {}", &self.release.id().to_string()[..16]),
            note => note.to_owned(),
        };
        TreeSummary { title, banners, facts: self.facts(), usable, is_release: true }
    }

    fn look(&self, path: &[Vec<u8>]) -> Result<PathTarget, ViewError> {
        let tree = self.tree()?;
        let node = match tree.resolve(&path.join(&b'/'), true).map_err(view_error)? {
            PathLookup::Node(node) => node,
            PathLookup::Nothing => return Ok(PathTarget::Nothing { proven: true }),
            PathLookup::Outside => return Ok(PathTarget::Outside),
        };
        let tag = match node.inode.kind {
            InodeKind::Directory => return Ok(PathTarget::Directory),
            InodeKind::File => node.inode.ihash(&tree.source().digest_key()).map_err(view_error)?,
            other => match kind_of(other) {
                Kind::Other(what) => return Ok(PathTarget::Other(what)),
                _ => return Ok(PathTarget::Other("link")),
            },
        };
        Ok(PathTarget::File(OpenFile {
            size: node.inode.size,
            modified_s: node.inode.modified_ns.div_euclid(1_000_000_000),
            tag: tag.to_string(),
            content: Box::new(VerifiedFile { tree, node }),
        }))
    }

    fn list(&self, path: &[Vec<u8>], after: Option<&[u8]>, limit: usize) -> Result<Listing, ViewError> {
        let tree = self.tree()?;
        let node = self.directory(&tree, path)?;
        let total = catalog::directory_root(&node.inode).map_err(view_error)?.len();
        if node.inode.xattrs.contains_key(catalog::OPAQUE) {
            return Ok(Listing { total: Some(total), opaque: true, ..Listing::default() });
        }
        let mut found = tree.entries(&node, after, limit + 1).map_err(view_error)?;
        let more = found.len() > limit;
        found.truncate(limit);
        let rows = found
            .into_iter()
            .map(|(name, entry)| Ok(row(name, &tree.node(entry)?.inode)))
            .collect::<Result<_, ContentError>>()
            .map_err(view_error)?;
        Ok(Listing { rows, total: Some(total), more, opaque: false })
    }

    fn changes(&self, limit: usize) -> Result<Vec<Change>, ViewError> {
        let tree = self.tree()?;
        let current = self.release.current();
        let record = &current.accepted.record;
        let cannot = |why: &str| ViewError { why: why.to_owned(), is_false: false };
        if record.sequence < 2 {
            return Err(cannot("this is the first release; there is none before it"));
        }
        let chain = self.release.trust().chain().map_err(|error| cannot(&error.to_string()))?;
        let chain = chain.ok_or_else(|| cannot("its keys are not known"))?;
        let name = layout::record(record.sequence - 1);
        let check = |bytes: Vec<u8>| {
            let file: RootFile = form::read(&bytes)?;
            authenticate(&chain, &file)?;
            Ok(file)
        };
        let had = self.release.mirrors().get_checked(&name, None, RootFile::BYTES_MAX, &check);
        let (before, _) = had.map_err(|error| match error.missing() {
            true => cannot("the mirrors do not keep the release before this one"),
            false => cannot(&error.to_string()),
        })?;
        let before = before.record.value;
        if record.previous != Some(before.digest()) {
            return Err(cannot("the mirrors keep another release than the one that this one follows"));
        }
        if before.digest_key != record.digest_key {
            return Err(cannot("the two have digests of different keys, and cannot be compared"));
        }
        let older = Tree::new(tree.source().clone(), before.root_dir);
        let mut changes = compare(&older, &tree, limit).map_err(view_error)?;
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(changes)
    }
}

/// The differences between two trees, at most `limit`. Subtrees with the same digest are skipped without
/// reading them.
fn compare(before: &Tree, after: &Tree, limit: usize) -> Result<Vec<Change>, ContentError> {
    let source = after.source();
    let until = Instant::now() + COMPARING_MAX;
    let map = MerkleMap::new(source.digest_key());
    let mut changes = Vec::new();
    let mut directories: VecDeque<(Vec<u8>, MapRoot, MapRoot)> = VecDeque::new();
    let (a, b) = (before.root()?, after.root()?);
    directories.push_back((
        Vec::new(),
        catalog::directory_root(&a.inode)?,
        catalog::directory_root(&b.inode)?,
    ));
    let mut enough = false;
    while let Some((path, a, b)) = directories.pop_front() {
        let result = map.diff(&**source, &a, &b, &mut |name, x, y| {
            if changes.len() >= limit || Instant::now() > until {
                enough = true;
                return Err(Misuse::Rule("enough".into()).into());
            }
            let inode = |value: Option<&Value>| -> Result<Option<Arc<Inode>>, ContentError> {
                let Some(value) = value else { return Ok(None) };
                Ok(Some(after.node(CatalogEntry::from_value(value)?)?.inode))
            };
            let path = if path.is_empty() { name.to_vec() } else { [&path[..], b"/", name].concat() };
            let (mark, what) = match (inode(x)?, inode(y)?) {
                (None, _) => ('+', "added"),
                (_, None) => ('-', "removed"),
                (Some(x), Some(y)) => match (&x.content, &y.content) {
                    (Holds::Directory(x), Holds::Directory(y)) => {
                        // Trees deeper than any path that can be opened are not compared further.
                        if path.len() <= 4096 {
                            directories.push_back((path, x.root, y.root));
                        }
                        return Ok(());
                    }
                    _ if x.content == y.content && x.size == y.size => ('·', "attributes changed"),
                    _ => ('~', "changed"),
                },
            };
            changes.push(Change { path, mark, what });
            Ok(())
        });
        if enough {
            break;
        }
        result?;
    }
    Ok(changes)
}
