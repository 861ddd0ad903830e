//! `holdfast cache`: what is cached on this machine of file systems and releases.

use crate::output::{Format, bytes_bar, clean, progress, table};
use clap::{Args, Subcommand};
use holdfast_client::store::pins::{self, Pin};
use holdfast_client::store::{CheckReport, DiskCache};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_daemon::cache::{ABOUT_FILE, About, SIZE_FILE, size_given};
use holdfast_daemon::control::Client;
use holdfast_daemon::mounts::pinning::PinState;
use holdfast_daemon::mounts::requests::{self, ListPins, Status};
use holdfast_daemon::mounts::status::MountDaemonStatus;
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use indicatif::HumanBytes;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folder of the caches of releases.
const RELEASES: &str = "releases";
/// How often the progress of a pin is checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// `holdfast cache`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  holdfast cache
  holdfast cache pin ~/shared/team/manual
  holdfast cache unpin ~/shared/team/manual
  holdfast cache size 20G
  holdfast cache check
  holdfast cache clear --unpinned

What was read or written is kept on this machine, for all mounts and commands of this user that use the same file
system or release, so that it need not come over the network again. Nothing in it is trusted: every block is verified
whenever it is read, so damage to it, or clearing it, costs time and nothing else. Beyond its size, what was not used
for longest goes. All of this works while mounts run."
)]
pub struct Cache {
    /// What to do instead of listing what there is.
    #[command(subcommand)]
    pub command: Option<CacheCommand>,
}

/// What can be done with caches.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Fetch a file or directory of a mount, and keep it whatever else comes. What others change in it is fetched every
    /// ten minutes while it is mounted.
    #[command(after_help = "Example:
  holdfast cache pin ~/shared/team/manual

Waits until all of it is there; if it is ended (Ctrl-C), the mount goes on by itself, and `holdfast cache` tells how far
it is. Pinning once more brings it up to date at once. All that is pinned may take nine tenths of the cache's size.")]
    Pin {
        /// A file or directory of a mounted file system.
        #[arg(value_name = "PATH")]
        path: PathBuf,
    },
    /// Keep it no longer than anything else.
    #[command(after_help = "Example:
  holdfast cache unpin ~/shared/team/manual")]
    Unpin {
        /// What was pinned: a path in a mount.
        #[arg(value_name = "PATH")]
        path: PathBuf,
    },
    /// Remove what is cached.
    #[command(after_help = "Examples:
  holdfast cache clear
  holdfast cache clear --unpinned --file-system hf://files.example.org/FSID")]
    Clear {
        /// Only of this file system or release: its address, or its ID.
        #[arg(long, value_name = "URL")]
        file_system: Option<String>,
        /// Leave what is pinned.
        #[arg(long)]
        unpinned: bool,
    },
    /// Verify everything that is cached, and drop what is damaged.
    #[command(after_help = "Example:
  holdfast cache check")]
    Check,
    /// Show or choose how much is kept of each file system and release.
    #[command(after_help = "Examples:
  holdfast cache size
  holdfast cache size 20G")]
    Size {
        /// Bytes, or with K, M, G or T for powers of 1024.
        #[arg(value_name = "BYTES", value_parser = bytes_of)]
        bytes: Option<u64>,
    },
}

/// Parses a number of bytes, such as `20G`.
pub fn bytes_of(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let unit = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(format!("{unit} is no unit; K, M, G and T are")),
    };
    let number: u64 = digits.parse().map_err(|_| "no number of bytes, such as 500M or 20G".to_owned())?;
    number.checked_mul(1 << unit).filter(|bytes| *bytes > 0).ok_or_else(|| "out of range".to_owned())
}

/// The cache of one file system or release.
struct Folder {
    path: PathBuf,
    id: String,
    is_release: bool,
    about: Option<About>,
}

impl Folder {
    fn open(&self, directories: &Directories) -> Outcome<DiskCache> {
        DiskCache::open(&self.path, size_given(directories)?).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        let code = match error.kind() {
            std::io::ErrorKind::ResourceBusy => Exit::InUse,
            _ => Exit::Io,
        };
        Failure::new(code, format!("{}: {error}", self.path.display()))
    }

    fn name(&self) -> String {
        let kind = if self.is_release { "release" } else { "file system" };
        self.about.as_ref().map_or_else(|| format!("{kind} {}", self.id), |about| clean(&about.address))
    }
}

fn folders(directories: &Directories) -> Outcome<Vec<Folder>> {
    let base = directories.cache_base()?;
    let mut found = Vec::new();
    for (below, is_release) in [(base.clone(), false), (base.join(RELEASES), true)] {
        for entry in std::fs::read_dir(&below).into_iter().flatten().flatten() {
            let Ok(id) = entry.file_name().into_string() else { continue };
            if Digest::from_hex(&id).is_none() {
                continue;
            }
            let path = entry.path();
            let about = std::fs::read(path.join(ABOUT_FILE)).ok();
            let about = about.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            found.push(Folder { path, id, is_release, about });
        }
    }
    found.sort_by(|a, b| (a.is_release, &a.id).cmp(&(b.is_release, &b.id)));
    Ok(found)
}

/// The report on one cache.
#[derive(Serialize)]
struct CacheOutput {
    name: String,
    id: String,
    release: bool,
    folder: PathBuf,
    bytes: u64,
    bytes_pinned: u64,
    bytes_max: u64,
    blocks: usize,
    pins: Vec<PinState>,
    /// For the mounts that are running: blocks that were found on disk and in memory, and that had to be
    /// fetched.
    hits: Option<Hits>,
}

#[derive(Serialize, Default, Clone, Copy)]
struct Hits {
    memory: u64,
    disk: u64,
    fetched: u64,
}

/// `holdfast cache`
pub fn run(arguments: &Cache, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        None => list(directories, format),
        Some(CacheCommand::Pin { path }) => pin(path, directories, format),
        Some(CacheCommand::Unpin { path }) => {
            let place = CachedPath::of(path, directories)?;
            place.process()?.call(&requests::Unpin { path: place.path.clone() })?;
            let said = serde_json::json!({ "unpinned": path });
            format.print(&said, |_| format!("{} is not pinned any more", path.display()))
        }
        Some(CacheCommand::Clear { file_system, unpinned }) => {
            clear(file_system.as_deref(), *unpinned, directories, format)
        }
        Some(CacheCommand::Check) => check(directories, format),
        Some(CacheCommand::Size { bytes }) => size(*bytes, directories, format),
    }
}

/// The processes that serve mounts, with their reports.
fn processes(directories: &Directories) -> Outcome<Vec<(PathBuf, MountDaemonStatus)>> {
    let mut found = Vec::new();
    for state_dir in directories.all_states()? {
        let Some(client) = Client::connect(&state_dir)? else { continue };
        match client.call(&Status) {
            Ok(status) => found.push((state_dir, status)),
            // It has just ended.
            Err(failure) if failure.code == Exit::Unavailable => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

fn list(directories: &Directories, format: Format) -> Outcome {
    let running = processes(directories)?;
    let mut all = Vec::new();
    for folder in folders(directories)? {
        let cache = folder.open(directories)?;
        let mine = running.iter().filter(|(_, status)| {
            !folder.is_release && status.address.rsplit('/').next() == Some(folder.id.as_str())
        });
        let mut hits = None;
        let plain = |pin: Pin| PinState { pin, under_way: false, trouble: None };
        let mut pins: Vec<PinState> = pins::list(&folder.path).into_iter().map(plain).collect();
        for (state_dir, status) in mine {
            let number = |name: &str| {
                status.engine.get("store").and_then(|store| store.get(name)?.as_u64()).unwrap_or(0)
            };
            let sum: &mut Hits = hits.get_or_insert_default();
            sum.memory += number("memory_hits");
            sum.disk += number("disk_hits");
            sum.fetched += number("blocks_fetched");
            if let Some(process) = Client::connect(state_dir)? {
                pins = process.call(&ListPins)?;
            }
        }
        all.push(CacheOutput {
            name: folder.name(),
            id: folder.id.clone(),
            release: folder.is_release,
            bytes: cache.bytes(),
            bytes_pinned: cache.bytes_pinned(),
            bytes_max: cache.bytes_max(),
            blocks: cache.len(),
            folder: folder.path,
            pins,
            hits,
        });
    }
    format.print(&all, |all| {
        if all.is_empty() {
            return "Nothing is cached.".to_owned();
        }
        all.iter().map(describe).collect::<Vec<_>>().join("\n\n")
    })
}

fn describe(shown: &CacheOutput) -> String {
    let mut rows = vec![
        vec!["  Folder".to_owned(), shown.folder.display().to_string()],
        vec![
            "  Cached".to_owned(),
            format!(
                "{} of at most {}, {} blocks",
                HumanBytes(shown.bytes),
                HumanBytes(shown.bytes_max),
                shown.blocks
            ),
        ],
    ];
    if let Some(hits) = shown.hits {
        let all = hits.memory + hits.disk + hits.fetched;
        let share = |part: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 * 100.0 };
        rows.push(vec![
            "  Mounted now".to_owned(),
            format!(
                "of {all} blocks {:.0}% were in memory, {:.0}% here, {:.0}% fetched",
                share(hits.memory),
                share(hits.disk),
                share(hits.fetched)
            ),
        ]);
    }
    for one in &shown.pins {
        let pin = &one.pin;
        let state = match (&one.trouble, one.under_way, pin.whole) {
            (Some(trouble), ..) => format!("NOT fetched: {}", clean(trouble)),
            (None, true, _) => "being fetched".to_owned(),
            (None, false, true) => format!("as of {}", holdfast_daemon::time::moment(pin.at_ns)),
            (None, false, false) => "not whole yet; mount it".to_owned(),
        };
        let what = format!("{} files, {}, {state}", pin.files, HumanBytes(pin.bytes));
        rows.push(vec![format!("  Pinned /{}", clean(&pin.path)), what]);
    }
    format!("{}\n{}", shown.name, table(&rows))
}

/// A path in a mounted file system.
struct CachedPath {
    state_dir: PathBuf,
    /// The path from the file system's root.
    path: String,
}

impl CachedPath {
    fn of(path: &Path, directories: &Directories) -> Outcome<CachedPath> {
        let absolute = mountpoint::absolute(path)?;
        let unknown = |what: &str| {
            Failure::new(Exit::NoInput, format!("{}: {what}", path.display()))
                .hint("name a file or directory of a file system that this user has mounted")
        };
        for (state_dir, status) in processes(directories)? {
            for mount in &status.mounts {
                if let Ok(below) = absolute.strip_prefix(&mount.directory) {
                    let below = below.to_str().ok_or_else(|| unknown("its name is no text"))?;
                    return Ok(CachedPath { state_dir, path: below.to_owned() });
                }
            }
        }
        Err(unknown("it is in no mounted file system"))
    }

    fn process(&self) -> Outcome<Client> {
        let ended = || Failure::new(Exit::Unavailable, "the process that served the mount has ended");
        Client::connect(&self.state_dir)?.ok_or_else(ended)
    }
}

fn pin(path: &Path, directories: &Directories, format: Format) -> Outcome {
    let place = CachedPath::of(path, directories)?;
    let mut state = place.process()?.call(&requests::Pin { path: place.path.clone() })?;
    let bar = progress("fetching");
    while state.under_way {
        std::thread::sleep(LOOK_EVERY);
        let all = place.process()?.call(&ListPins)?;
        let unpinned =
            || Failure::new(Exit::Failed, format!("{}: it was unpinned meanwhile", path.display()));
        state = all.into_iter().find(|one| one.pin.id == state.pin.id).ok_or_else(unpinned)?;
        let (files, bytes) = (state.pin.files, HumanBytes(state.pin.bytes));
        bar.set_message(format!("fetching: {files} files, {bytes}"));
    }
    bar.finish_and_clear();
    if let Some(trouble) = &state.trouble {
        return Err(Failure::new(Exit::Failed, format!("{}: {trouble}", path.display())).hint(
            "pin it again to go on; `holdfast cache size` makes room, `holdfast cache unpin` ends it",
        ));
    }
    format.print(&state, |state| {
        format!("{}: pinned, {} files, {}", path.display(), state.pin.files, HumanBytes(state.pin.bytes))
    })
}

fn clear(file_system: Option<&str>, unpinned: bool, directories: &Directories, format: Format) -> Outcome {
    let wanted = file_system.map(|text| text.trim_end_matches('/'));
    let is_wanted = |folder: &Folder| wanted.is_none_or(|wanted| wanted.contains(&folder.id));
    let found: Vec<Folder> = folders(directories)?.into_iter().filter(is_wanted).collect();
    if let Some(wanted) = wanted
        && found.is_empty()
    {
        return Err(Failure::new(Exit::NoInput, format!("{wanted}: nothing of it is cached"))
            .hint("`holdfast cache` lists what is"));
    }
    let mut freed = 0;
    for folder in &found {
        let mut cache = folder.open(directories)?;
        let before = cache.bytes();
        cache.clear(!unpinned).map_err(|error| folder.failed(&error))?;
        freed += before.saturating_sub(cache.bytes());
    }
    let said = serde_json::json!({ "caches": found.len(), "bytes_freed": freed });
    format.print(&said, |_| format!("Cleared: {} of {} caches", HumanBytes(freed), found.len()))
}

fn check(directories: &Directories, format: Format) -> Outcome {
    let mut found: Vec<(String, CheckReport)> = Vec::new();
    for folder in folders(directories)? {
        let key = folder.about.as_ref().and_then(|about| Digest::from_hex(&about.digest_key));
        let key = key.map_or(DigestKey::WELL_KNOWN, |key| DigestKey(key.0));
        let mut cache = folder.open(directories)?;
        let bar = bytes_bar("verifying");
        bar.set_length(cache.bytes());
        let checked = cache.check(&key, &mut |bytes| bar.inc(bytes));
        bar.finish_and_clear();
        found.push((folder.name(), checked.map_err(|error| folder.failed(&error))?));
    }
    format.print(&found, |found| {
        let rows = found.iter().map(|(name, checked)| {
            let (good, bytes) = (checked.blocks, HumanBytes(checked.bytes));
            let bad = match (checked.bad, checked.bytes_torn) {
                (0, 0) => "all good".to_owned(),
                (bad, torn) => format!("DROPPED {bad} bad blocks and {torn} bytes that were none"),
            };
            format!("{name}\n  {good} blocks, {bytes}: {bad}")
        });
        let rows: Vec<String> = rows.collect();
        if rows.is_empty() { "Nothing is cached.".to_owned() } else { rows.join("\n") }
    })
}

fn size(bytes: Option<u64>, directories: &Directories, format: Format) -> Outcome {
    if let Some(bytes) = bytes {
        let base = directories.cache_base()?;
        holdfast_daemon::paths::make_private(&base)?;
        let path = base.join(SIZE_FILE);
        std::fs::write(&path, format!("{bytes}\n"))
            .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", path.display())))?;
        for folder in folders(directories)? {
            DiskCache::choose_size(&folder.path, bytes).map_err(|error| folder.failed(&error))?;
            // Opening a cache removes what exceeds the new size.
            folder.open(directories)?;
        }
    }
    let bytes = size_given(directories)?;
    format.print(&serde_json::json!({ "bytes_max": bytes }), |_| {
        format!("{} at most are kept of each file system and release", HumanBytes(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: numbers of bytes are parsed as people write them, and other text is rejected.
    #[test]
    fn sizes() {
        for (text, expected) in
            [("5", Some(5)), ("20G", Some(20 << 30)), ("3KiB", Some(3072)), ("1t", Some(1 << 40))]
        {
            assert_eq!(bytes_of(text).ok(), expected, "{text}");
        }
        for text in ["", "0", "G", "-1", "5X", "99999999999T", "1.5G"] {
            assert!(bytes_of(text).is_err(), "{text}");
        }
    }
}
