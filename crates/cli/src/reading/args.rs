//! The command line of what has to do with reading and publishing releases.

use clap::{Args, value_parser};
use holdfast_daemon::paths::DirectoryList;
use std::path::PathBuf;

/// `holdfast release publish`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release publish ./site --key ~/.config/holdfast/key --to ./release
  holdfast release publish ./site --key a.key --key b.key --to ./release --note 'Version 2.1' --expires 90d
  holdfast release publish ./tree --key k --to ./release --exclude '*.o' --exclude /build --opaque names
  holdfast release publish hf://HOST/FSID/docs --as device.key --key k --to ./release
  holdfast release publish ./site --key k --to 's3://BUCKET/PREFIX?endpoint=https://s3.example.org'

The release directory then holds everything that a mirror needs; copy it to any web server. The first time, its keys \
are made from those given, and an ID that people name it by; `holdfast release keys` makes keys of which fewer than all \
must sign, and changes them later. Publishing again reads only what has changed, adds only what is new, and keeps the \
last releases whole for those who still read them.

Kept: names, content, holes, modes, times of modification, hard links, symbolic links, special files and user.* \
attributes. Not kept: owners, times of change and access, other attributes.

What walks and parses the tree is a sandboxed process of its own, without the keys; `holdfast components` shows it.

A directory of a live file system is published as one verified view of it has it, without reading the data of its \
files: the release refers to it, and the server keeps it for as long as the release is kept. Readers get it through \
`holdfast release serve RELEASEDIR --origin URL --key KEY`, or `holdfast release pull` copies it.

With --to s3://... the release goes into a bucket, which then serves it itself: only what it does not have is sent, and the record is replaced last, so readers see the release before or this one, also if publishing is stopped; run again, it goes on where it was. Credentials are taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials, or a web identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN), or the role of this container or machine. A copy of the release stays in the cache directory, and is made again from the bucket if it is missing. Publish into one prefix from one machine at a time.

If not all signatures that are needed are made here, the release waits in a draft beside the release directory.")]
pub struct Publish {
    /// The directory to publish; or one of a live file system, hf://HOST:PORT/FSID/PATH
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The release directory, made if it is not there; or a bucket, s3://BUCKET/PREFIX?endpoint=URL&region=NAME
    #[arg(long, value_name = "RELEASEDIR")]
    pub to: PathBuf,
    /// A key to sign with; several sign together
    #[arg(long, value_name = "KEY", required = true)]
    pub key: Vec<PathBuf>,
    /// For a live file system: the key that this device mounts it with
    #[arg(long = "as", value_name = "KEY")]
    pub device_key: Option<PathBuf>,
    /// A title or version for people, at most 256 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    /// How long it counts unless it is published or renewed again before, such as 30d or 12h
    #[arg(long, value_name = "SPAN", default_value = "30d")]
    pub expires: String,
    /// How many releases stay whole, this one included
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u16).range(1..=1000))]
    pub keep: u16,
    /// Leave out what matches: `*` and `?` within a name, `**` over names; without a slash in every directory
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Directories of which listings show only names already referred to; `.` is the root
    #[arg(long, value_name = "PATTERN")]
    pub opaque: Vec<String>,
    /// Times of modification later than this, in seconds since 1970, become this
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH")]
    pub newest: Option<i64>,
    /// zstd's level
    #[arg(long, value_name = "LEVEL", default_value_t = 3, value_parser = value_parser!(u8).range(1..=19))]
    pub level: u8,
    /// For a first release: key its digests with a secret of its own, so that its blocks are like nobody else's
    #[arg(long)]
    pub private_digests: bool,
    /// Read every file, also those that have not changed since the last time
    #[arg(long)]
    pub forget: bool,
    /// Walk and parse the tree in the process that has the keys, where sandboxes cannot be made (some containers). A hole
    /// in what parses it is then a hole in the keys
    #[arg(long)]
    pub one_process: bool,
    /// What concerns buckets
    #[command(flatten)]
    pub sending: Sending,
}

/// What concerns releases that are sent to a bucket.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Buckets")]
pub struct Sending {
    /// How long files that no release needs any more stay in the bucket, for those who still read by an older index; 0
    /// for not at all
    #[arg(long, value_name = "SPAN", default_value = "2d")]
    pub prune_after: String,
    /// Read every file in the bucket again, and send anew what was altered there
    #[arg(long)]
    pub recheck: bool,
}

/// What is asked of a release before it is believed, wherever it is had from.
#[derive(Clone, Debug, Args)]
pub struct Demands {
    /// The release's ID, as the publisher tells it
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Another mirror; the fastest one that is right is used
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<String>,
    /// A directory of revocation certificates to be honoured
    #[arg(long, value_name = "DIR", env = "HOLDFAST_REVOCATIONS")]
    pub revocations: Vec<DirectoryList>,
    /// Use a release although it has expired: it may be OLD, with faults that were corrected since
    #[arg(long)]
    pub allow_stale: bool,
}

/// Which release, and where it is.
#[derive(Debug, Args)]
pub struct ReleaseSource {
    /// The release: hf+release:ID@MIRROR, or a mirror (https://HOST/PATH/, http://..., s3://BUCKET/PREFIX, a directory) with --id
    #[arg(value_name = "RELEASE")]
    pub release: String,
    /// What is asked of it
    #[command(flatten)]
    pub demands: Demands,
    /// Most MiB of verified blocks to keep on disk, unless `holdfast cache size` says otherwise; 0 keeps nothing new
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    pub cache_mib: u64,
}

/// What concerns mounts of releases only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Releases")]
pub struct ReleaseMount {
    /// What is asked of it
    #[command(flatten, next_help_heading = "Releases")]
    pub demands: Demands,
    /// Seconds between looks for a new release
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = value_parser!(u64).range(1..=86_400))]
    pub refresh: u64,
    /// Neither fetch ahead what was read first the last time, nor remember what is read first now
    #[arg(long)]
    pub no_first_touch: bool,
}

/// `holdfast release ls`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release ls hf+release:4f1c...@https://mirror.example/release/ src
  holdfast release ls -l https://mirror.example/release/ --id 4f1c...")]
pub struct Ls {
    /// Which release
    #[command(flatten)]
    pub source: ReleaseSource,
    /// A path in it
    #[arg(value_name = "PATH", default_value = ".")]
    pub path: PathBuf,
    /// Show kind, mode, links, size and time too
    #[arg(short, long)]
    pub long: bool,
}

/// `holdfast release cat`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast release cat hf+release:4f1c...@https://mirror.example/release/ README

Every byte is verified before it is printed.")]
pub struct Cat {
    /// Which release
    #[command(flatten)]
    pub source: ReleaseSource,
    /// Paths of files in it
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// `holdfast release get`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release get hf+release:4f1c...@https://mirror.example/release/ src ./src
  holdfast release get https://mirror.example/release/ . ./everything --id 4f1c...

Every byte is verified before it is written. Owners are not kept, set-user-ID bits are not set, and device nodes are \
left out.

What is fetched is made in .NAME.partial beside TO and gets its name when all of it is there, so TO is whole or not \
there. If it was cut off, the same command goes on with what is in .NAME.partial; to give it up, remove that.")]
pub struct Get {
    /// Which release
    #[command(flatten)]
    pub source: ReleaseSource,
    /// A path in it; `.` for all
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Where to; must not be there yet
    #[arg(value_name = "TO")]
    pub to: PathBuf,
}

/// `holdfast release verify`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release verify hf+release:4f1c...@https://mirror.example/release/
  holdfast release verify ./release --id 4f1c... --as-of 2026-11-21 docs/price-list

Says whether a path is there, and proves it either way; of what is there, every byte is fetched and verified. With \
--as-of, by the record that was in force then, if this machine accepted it then: records are archived, so a publisher \
cannot deny later what a release held.")]
pub struct Verify {
    /// Which release
    #[command(flatten)]
    pub source: ReleaseSource,
    /// A path in it; everything if there is none
    #[arg(value_name = "PATH", default_value = ".")]
    pub path: PathBuf,
    /// By the record in force at this time (UTC), such as 2026-11-21 or 2026-11-21T08:00Z
    #[arg(long, value_name = "TIME")]
    pub as_of: Option<String>,
}

/// `holdfast release pull`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release pull hf+release:4f1c...@https://mirror.example/release/ /srv/release
  holdfast release pull https://mirror.example/release/ /srv/release --id 4f1c... --keep 3 --quick
  holdfast release pull https://mirror.example/release/ /srv/release --id 4f1c... --from /media/stick/release
  holdfast release pull hf+release:4f1c...@./release 's3://BUCKET/PREFIX?endpoint=https://s3.example.org'
  holdfast release pull 'hf+release:4f1c...@s3://BUCKET/PREFIX?endpoint=https://s3.example.org' /srv/release

DIR can be served by any web server, or `holdfast release serve`, also while it is pulled into: its record is replaced last. \
Only what is not there is fetched; a pull that was stopped goes on where it was when it is run again. What no release that is \
kept needs is removed, one pull later than it could be.

The data of a release that was published from a live file system is fetched too, through a mirror that reaches it or \
with --origin, and DIR is then whole without it.

A bucket in place of DIR becomes a mirror: of a directory of this machine, which is checked and sent as it is, or of any other mirror by way of a copy in the cache directory.

Every block of the releases that are kept is checked against their records, and a pack that was damaged here is fetched \
anew. With --quick, blocks that were there at the last pull are not read again.")]
pub struct Pull {
    /// The release: hf+release:ID@MIRROR, or a mirror (https://HOST/PATH/, http://..., s3://BUCKET/PREFIX, a directory) with --id
    #[arg(value_name = "RELEASE")]
    pub source: String,
    /// The directory, made if it is not there; or a bucket, s3://BUCKET/PREFIX?endpoint=URL&region=NAME
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// What is asked of it
    #[command(flatten)]
    pub demands: Demands,
    /// What concerns buckets
    #[command(flatten)]
    pub sending: Sending,
    /// The live file system that the release was made of, hf://HOST:PORT/FSID, to fetch data from that no mirror has
    #[arg(long, value_name = "URL", requires = "key")]
    pub origin: Option<String>,
    /// A key of any member of it
    #[arg(long, value_name = "KEY", requires = "origin")]
    pub key: Option<PathBuf>,
    /// How many releases to keep, the newest included [default: as many as the mirror]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1000))]
    pub keep: Option<u16>,
    /// A release directory or mirror on this machine of which blocks may be copied instead of fetched
    #[arg(long, value_name = "DIR")]
    pub from: Vec<PathBuf>,
    /// Do not read again what was checked when it was pulled
    #[arg(long)]
    pub quick: bool,
    /// How many files are fetched at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u8).range(1..=64))]
    pub connections: u8,
}
