//! Naming and opening releases, and finding files in them.

use super::args::ReleaseSource;
use holdfast_content::{ContentError, SourceError};
use holdfast_daemon::paths::{Directories, DirectoryList, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::keys::ReleaseId;
use holdfast_release::mirror;
use holdfast_release::moment::parse_span;
use holdfast_release::open::{Options, Release};
use holdfast_release::tree::{Node, PathLookup, Tree};
use std::fmt::Display;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The prefix of links to releases.
pub const SCHEME: &str = "hf+release:";
/// Bytes read at once.
pub const READ_BYTES: usize = 4 << 20;
/// Names listed at once.
pub const PAGE: usize = 1024;

/// A failure about a release, with the general exit code.
pub fn release_failure(error: impl Display) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}

/// Parses a duration in an argument.
pub fn span_of(name: &str, text: &str) -> Outcome<u64> {
    parse_span(text).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{name} {text}: no span of time")).hint("such as 30d, 12h or 90m")
    })
}

/// A release and its mirrors, as arguments name them.
pub struct Named {
    /// The release's ID.
    pub id: ReleaseId,
    /// The mirrors, as given.
    pub mirrors: Vec<String>,
}

impl ReleaseSource {
    /// The release and the mirrors that the arguments name.
    ///
    /// # Errors
    /// The id is missing or malformed, or there are two.
    pub fn named(&self) -> Outcome<Named> {
        let usage = |message: String| Failure::new(Exit::Usage, message);
        let (mut ids, mut mirrors) = (Vec::new(), Vec::new());
        match self.release.strip_prefix(SCHEME) {
            Some(rest) => match rest.split_once('@') {
                Some((id, mirror)) => {
                    ids.push(id);
                    mirrors.push(mirror.to_owned());
                }
                None => ids.push(rest),
            },
            None => mirrors.push(self.release.clone()),
        }
        ids.extend(self.demands.id.iter().map(String::as_str));
        mirrors.extend(self.demands.mirror.iter().cloned());
        let Some(id) = ids.first() else {
            let hint = "give --id ID, or hf+release:ID@MIRROR; the publisher tells the ID. A mirror cannot vouch for \
                        itself";
            return Err(usage(format!("{}: which release is not said", self.release)).hint(hint));
        };
        if ids.iter().any(|other| other != id) {
            return Err(usage("the link and --id name two releases".into()));
        }
        let id = ReleaseId::from_hex(id)
            .ok_or_else(|| usage(format!("{id}: no id of a release")).hint("it has 64 hexadecimal digits"))?;
        if mirrors.is_empty() {
            return Err(usage(format!("{}: no mirror is named", self.release))
                .hint("give hf+release:ID@https://HOST/PATH/, or --mirror"));
        }
        // A relative path is made absolute.
        for mirror in &mut mirrors {
            if !mirror.contains("://") && !mirror.starts_with('/') {
                let path =
                    std::path::absolute(&*mirror).map_err(|error| usage(format!("{mirror}: {error}")))?;
                *mirror = path.display().to_string();
            }
        }
        Ok(Named { id, mirrors })
    }

    /// Opens the release. Notices for people go to standard error.
    ///
    /// # Errors
    /// No mirror has a valid release, it is revoked, or a local file is damaged.
    pub fn open(&self, directories: &Directories) -> Outcome<Release> {
        self.open_telling(directories, &|text| drop(writeln!(std::io::stderr(), "holdfast: {text}")))
    }

    /// Like [`ReleaseSource::open`], with notices for people passed to `tell`.
    ///
    /// # Errors
    /// As for [`ReleaseSource::open`].
    pub fn open_telling(&self, directories: &Directories, tell: &dyn Fn(&str)) -> Outcome<Release> {
        let Named { id, mirrors } = self.named()?;
        let trust = directories.releases_base()?;
        make_private(&trust)?;
        let folder = directories.cache_base()?.join("releases").join(id.to_string());
        make_private(&folder)?;
        // A size of 0 disables the cache, whatever size was chosen for all.
        let bytes_max = match (self.cache_mib, holdfast_daemon::cache::size_chosen(directories)?) {
            (0, _) => 0,
            (_, Some(chosen)) => chosen,
            (mib, None) => mib.saturating_mul(1 << 20),
        };
        let options = Options {
            id,
            trust,
            revocations: DirectoryList::all(&self.demands.revocations),
            stale: if self.demands.allow_stale { ExpiredPolicy::Allow } else { ExpiredPolicy::Refuse },
            cache: Some((folder.clone(), bytes_max)),
            memory_bytes: 64 << 20,
        };
        let mirrors = mirrors
            .iter()
            .map(|address| mirror::parse(address))
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
        let release = Release::open(options, mirrors)?;
        warnings(&release).for_each(|text| tell(&format!("warning: {text}")));
        holdfast_daemon::cache::remember(
            &folder,
            &format!("{SCHEME}{id}"),
            &release.current().accepted.record.digest_key,
        );
        Ok(release)
    }
}

/// Warnings and notices for people about the accepted release.
pub fn warnings(release: &Release) -> impl Iterator<Item = String> {
    let current = release.current();
    let warnings: Vec<String> = current.accepted.warnings.iter().map(ToString::to_string).collect();
    warnings.into_iter().chain(current.notices.clone())
}

/// Reports bad mirrors when dropped, that is however the command ends.
pub struct BadMirrors<'a>(pub &'a Release);

impl Drop for BadMirrors<'_> {
    fn drop(&mut self) {
        for (mirror, why) in self.0.mirrors().dropped() {
            let _ = writeln!(std::io::stderr(), "holdfast: warning: {mirror} is a bad mirror: {why}");
        }
    }
}

/// The failure for content that cannot be read.
pub fn content_failure(path: &[u8], error: &ContentError) -> Failure {
    let path = String::from_utf8_lossy(path).into_owned();
    let name = if path.is_empty() { "the root directory".to_owned() } else { path };
    match error {
        ContentError::Source(SourceError::Unreachable(_, why)) => {
            Failure::new(Exit::Unavailable, format!("{name}: {why}"))
        }
        ContentError::Source(SourceError::Missing(address)) => {
            Failure::new(Exit::Unavailable, format!("{name}: no mirror has block {}", address.short()))
                .hint("the mirror may not be whole; name another with --mirror")
        }
        error => Failure::new(Exit::Alarm, format!("{name}: {error}"))
            .hint("what the mirrors sent is not what the publisher signed; name another with --mirror"),
    }
}

/// A path in a release as a prefix of names below it: `.` becomes empty.
pub fn inside(path: &Path) -> &[u8] {
    let path = path.as_os_str().as_bytes();
    if path == b"." { b"" } else { path }
}

/// Fetches the blocks for several paths in one round trip, if a path is long enough for that to help.
pub fn look_ahead(release: &Release, paths: &[&[u8]]) {
    if paths.iter().any(|path| path.contains(&b'/')) {
        release.look_ahead(paths);
    }
}

/// The node of a path that must exist.
pub fn find(tree: &Tree, path: &[u8], follow: bool) -> Outcome<Node> {
    let shown = String::from_utf8_lossy(path).into_owned();
    match tree.resolve(path, follow).map_err(|error| content_failure(path, &error))? {
        PathLookup::Node(node) => Ok(node),
        PathLookup::Nothing => {
            Err(Failure::new(Exit::NoInput, format!("{shown}: provably not in the release")))
        }
        PathLookup::Outside => Err(Failure::new(Exit::NoInput, format!("{shown}: leads out of the release"))),
    }
}
