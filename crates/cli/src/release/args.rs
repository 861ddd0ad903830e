//! The command line of `holdfast release`.

use crate::reading::args as reading;
use clap::{Args, Subcommand};
use holdfast_release::keys::ReleaseId;
use holdfast_release::moment::{parse_moment, parse_span};
use std::path::PathBuf;

fn moment(text: &str) -> Result<u64, String> {
    parse_moment(text).ok_or_else(|| "not a time such as 2027-01-31 or '2027-01-31 12:00' (UTC)".to_owned())
}

fn span(text: &str) -> Result<u64, String> {
    parse_span(text).ok_or_else(|| "not a span of time such as 12h, 7d or 2w".to_owned())
}

fn id(text: &str) -> Result<ReleaseId, String> {
    ReleaseId::from_hex(text).ok_or_else(|| "not the id of a release (64 hexadecimal digits)".to_owned())
}

/// `holdfast release`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release publish ./site --key ~/.config/holdfast/key --to ./release
  holdfast release serve ./release
  holdfast release pull hf+release:4f1c...@https://mirror.example/release/ /srv/release
  holdfast release get hf+release:4f1c...@https://mirror.example/release/ src ./src
  holdfast release keys init --out site --key anna.key
  holdfast release show site

`holdfast mount` mounts a release. See docs/internals/release-format.md for what is signed, and by whom.")]
pub struct Release {
    /// What to do.
    #[command(subcommand)]
    pub command: ReleaseCommand,
}

/// Signed releases.
#[derive(Debug, Subcommand)]
pub enum ReleaseCommand {
    /// Publish a directory as a signed release.
    Publish(reading::Publish),
    /// List a directory of a release, without a mount.
    Ls(reading::Ls),
    /// Print files of a release, verified.
    Cat(reading::Cat),
    /// Copy a file or a tree out of a release, verified.
    Get(reading::Get),
    /// Verify a release, or one path of it, every byte.
    Verify(reading::Verify),
    /// Make an image of a release, which the kernel mounts by itself.
    Export(crate::image::args::Export),
    /// Make a directory a mirror of a release, or bring it up to date.
    Pull(reading::Pull),
    /// Serve a release to anybody, as a mirror.
    Serve(crate::args::Serve),
    /// Show a release, or a directory, to people who have only a browser.
    Gateway(crate::args::Gateway),
    /// The keys of a release: begin with some, exchange some.
    Keys(Keys),
    /// Say that the record of a release still counts, with a key that can do nothing else.
    Renew(Renew),
    /// Make a certificate that ends a release for good.
    Revoke(Revoke),
    /// Sign a draft that needs more signatures, or put copies of one together.
    Sign(Sign),
    /// Show a release or one of its files: who signed, which it is, from when to when it counts.
    Show(Show),
}

/// `holdfast release keys`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release keys init --out site --key anna.key
  holdfast release keys rotate site --key anna.key --key anna-new.key --remove anna.key.pub")]
pub struct Keys {
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// Keys of a release.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Begin a release: make its first key set, and print its id.
    Init(Init),
    /// Replace the key set of a release by a new one.
    Rotate(Rotate),
}

/// Who may renew, and for how long.
#[derive(Debug, Args)]
pub struct Renewals {
    /// Key that may say that a record still counts, and nothing else: a public key line, or a key file (only the
    /// public half of it is used). Several times for several keys.
    #[arg(long, value_name = "KEY", requires = "freshness_until")]
    pub freshness_key: Vec<String>,
    /// How long one renewal may last: 12h, 7d, 2w.
    #[arg(long, value_name = "SPAN", default_value = "7d", value_parser = span)]
    pub freshness_term: u64,
    /// The day (or time, UTC) from which on nothing can be renewed with these keys.
    #[arg(long, value_name = "DATE", requires = "freshness_key", value_parser = moment)]
    pub freshness_until: Option<u64>,
    /// How many of these keys must sign.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "freshness_key")]
    pub freshness_threshold: u16,
}

/// `holdfast release keys init`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release keys init --out site --key anna.key
  holdfast release keys init --out site --key anna.key --add ben.pub --add carla.pub --threshold 2 \\
      --freshness-key server.pub --freshness-term 7d --freshness-until 2028-01-01

The id that is printed is all that people need to tell the true release from a false one, whoever serves it. Two
releases with the same keys have two ids. Keep signing keys off line, with a passphrase, and several of them: with a
threshold of 2 of 3 keys, neither a thief nor a loss of one ends the release.

If keys of --add have to sign too, the key set goes to a draft (DIR.keys-1.draft) for `holdfast release sign`.")]
pub struct Init {
    /// Directory of the release; made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// A key that signs: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY", required = true)]
    pub key: Vec<PathBuf>,
    /// Another key that may sign, and is not here: a public key line, or a key file.
    #[arg(long, value_name = "PUBLIC-KEY")]
    pub add: Vec<String>,
    /// How many of the keys must sign. Needed when there is more than one.
    #[arg(long, value_name = "N")]
    pub threshold: Option<u16>,
    /// Who may renew.
    #[command(flatten)]
    pub renewals: Renewals,
    /// It is a certificate directory: nobody can ever be made to use it after it has expired.
    #[arg(long)]
    pub certificates: bool,
}

/// `holdfast release keys rotate`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release keys rotate site --key anna.key --key anna-new.key --remove anna.key.pub
  holdfast release keys rotate site --key anna.key --key ben.key --add carla.pub --threshold 2
  holdfast release keys rotate site --key anna.key --freshness-key server.pub --freshness-until 2029-01-01

The new key set is signed by enough of the old keys and enough of the new ones. A key of --key that is not in the
old set is added to the new one. The record is signed anew by the new keys, because people who have seen them refuse
what only the old ones signed. If signatures lack, all of it goes to a draft (DIR.keys-N.draft) for `holdfast release
sign`.")]
pub struct Rotate {
    /// Directory of the release.
    #[arg(value_name = "RELEASEDIR")]
    pub directory: PathBuf,
    /// A key that signs, old or new: a private key file, or one in your SSH agent.
    #[arg(long, value_name = "KEY", required = true)]
    pub key: Vec<PathBuf>,
    /// A new key that is not here: a public key line, or a key file.
    #[arg(long, value_name = "PUBLIC-KEY")]
    pub add: Vec<String>,
    /// An old key that may not sign any more.
    #[arg(long, value_name = "PUBLIC-KEY")]
    pub remove: Vec<String>,
    /// How many of the new keys must sign [default: as many as before].
    #[arg(long, value_name = "N")]
    pub threshold: Option<u16>,
    /// Who may renew from now on [default: who may now].
    #[command(flatten)]
    pub renewals: Renewals,
    /// Nobody may renew from now on.
    #[arg(long, conflicts_with = "freshness_key")]
    pub no_freshness: bool,
    /// How long the record counts that is signed anew [default: as long as the one before].
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub r#for: Option<u64>,
}

/// `holdfast release renew`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release renew /srv/site --key /etc/holdfast/freshness.key
  holdfast release renew /srv/site --key /etc/holdfast/freshness.key --for 2d

For a timer on the machine that has the key: what people mount counts for that much longer, with the same content.")]
pub struct Renew {
    /// Directory of the release.
    #[arg(value_name = "RELEASEDIR")]
    pub directory: PathBuf,
    /// A key that may renew: a private key file, or one in your SSH agent.
    #[arg(long, value_name = "KEY", required = true)]
    pub key: Vec<PathBuf>,
    /// How long it counts from now on [default: as long as the key set allows].
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub r#for: Option<u64>,
}

/// `holdfast release revoke`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release revoke site --key anna.key --key ben.key --out end-of-site --reason 'the keys were stolen'
  holdfast release revoke site --key anna.key --out end-of-site --successor 5c1f...

Nothing happens until the certificate is found: put it at the mirrors as `revoked`, and into directories of
revocations as a file named after the id. It cannot be taken back. It is wise to make one before it is needed, and to
keep it where the keys are not.")]
pub struct Revoke {
    /// Directory of the release.
    #[arg(value_name = "RELEASEDIR")]
    pub directory: PathBuf,
    /// A key that signs: a private key file, or one in your SSH agent.
    #[arg(long, value_name = "KEY", required = true)]
    pub key: Vec<PathBuf>,
    /// File for the certificate; never overwritten.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Why, for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// The release that takes its place.
    #[arg(long, value_name = "ID", value_parser = id)]
    pub successor: Option<ReleaseId>,
}

/// `holdfast release sign`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release sign site.keys-2.draft --key ben.key
  holdfast release sign site.keys-2.draft --merge copy-from-carla.draft --to site
  holdfast release sign end-of-site.draft --key ben.key --to end-of-site

A draft holds all that is to be signed and all that is needed to check it; `holdfast release show DRAFT` shows it.
It goes from one to the next, or copies are signed side by side and put together with --merge. Nothing in it counts
before enough have signed; then --to puts what is signed in its place and removes the draft.")]
pub struct Sign {
    /// The draft; signatures are added to it.
    #[arg(value_name = "DRAFT")]
    pub draft: PathBuf,
    /// A key that signs: a private key file, or one in your SSH agent.
    #[arg(long, value_name = "KEY", required_unless_present_any = ["merge", "to"])]
    pub key: Vec<PathBuf>,
    /// A copy whose signatures are taken in.
    #[arg(long, value_name = "DRAFT")]
    pub merge: Vec<PathBuf>,
    /// Where what is signed goes: the directory of the release, or for a revocation the file of the certificate.
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
}

/// `holdfast release show`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release show site
  holdfast release show site/root --json
  holdfast release show site.keys-2.draft

Shows the directory of a release, a key set, a record, a draft or a revocation certificate. Exit code 1 if it does
not count: too few signatures, false ones, expired, revoked.")]
pub struct Show {
    /// Directory of a release, or a file of one.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}
