//! The command line of rules for programs.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `holdfast program acl`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast program acl set /mnt/team/id_ed25519 prog:/usr/bin/ssh=r")]
pub struct Acl {
    /// What to do.
    #[command(subcommand)]
    pub command: AclCommand,
}

/// Rules of a file.
#[derive(Debug, Subcommand)]
pub enum AclCommand {
    /// Let programs in, and all others out.
    Set(AclSet),
    /// Show the rules.
    #[command(visible_alias = "show")]
    Get(AclGet),
    /// Take programs out of the rules.
    Remove(AclRemove),
    /// End all rules: every program may use the file again.
    Clear(AclClear),
}

/// `holdfast program acl set`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast program acl set /mnt/team/id_ed25519 prog:/usr/bin/ssh=r    # for: holdfast program run -- /usr/bin/ssh ...
  holdfast program acl set /mnt/team/ledger prog:/usr/bin/ledger=rw pkg:/etc/holdfast/packager.pub/accounting=rw
  holdfast program acl set --recursive /mnt/team/keys prog:/usr/bin/ssh=r
  holdfast program acl set /mnt/alice/plans.txt user:bob=r group:staff=rw

In a shared file system (`holdfast mount`) rules bind programs: from then on only these programs open the file on this machine, and on others that honour rules; everybody else gets
EACCES. WHO is prog:PATH (the program that is there now, by the hash of its file), hash:HEX, pkg:KEY/NAME (whatever a
manifest lists that this key signed, see `holdfast program sign`; KEY is a public key file) or any. Rights are r or rw.
Behind them, +interpreter lets in a program that runs what it is given (python, sh), +jit one that makes code while it
runs, +plain one that `holdfast program run` did not start: other processes of its user can take what it has opened
(docs/programs.md). What is made in a directory with rules begins with the same; what is there already gets them with --recursive.

On a volume (`holdfast volume mount`) a file has an owner and an ACL, and nobody uses it who is not on it: WHO may also be
user:NAME, group:NAME, key:KEY, or such:φ (processes by what they run, docs/programs.md). Its owner changes it, through a mount
of their own, with effect for files that others have open. Programs use it through a session of theirs (`holdfast volume mount
--session prog:/usr/bin/ssh=DIR`); take yourself off the list to keep your other programs out.

The helper `holdfast program callers` must run as root: without it, files with rules are refused to everybody.
Rules bind programs of this machine, not people: the server and other members read the file as before, and so does
whoever can read the mount's key, its cache or its memory. Mount as another user, with --allow-other, to keep those
from your own programs. docs/programs.md tells what rules withstand.")]
pub struct AclSet {
    /// File or directory in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// WHO=r or WHO=rw; the others that are there stay.
    #[arg(value_name = "RULE", required = true)]
    pub rules: Vec<String>,
    /// Everything below a directory too.
    #[arg(long, short)]
    pub recursive: bool,
}

/// `holdfast program acl get`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast program acl get /mnt/team/id_ed25519")]
pub struct AclGet {
    /// File or directory in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `holdfast program acl remove`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast program acl remove /mnt/team/id_ed25519 prog:/usr/bin/ssh

The last rule cannot be removed so, as nobody could use the file any more or everybody could: set others first, or
`holdfast program acl clear` it. On a volume it can: then only its owner can change who may use it.")]
pub struct AclRemove {
    /// File or directory in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Programs, as in `holdfast program acl set` but without rights.
    #[arg(value_name = "WHO", required = true)]
    pub who: Vec<String>,
}

/// `holdfast program acl clear`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast program acl clear --recursive /mnt/team/keys

On a volume, only the owner is on the file's ACL after it.")]
pub struct AclClear {
    /// File or directory in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Everything below a directory too.
    #[arg(long, short)]
    pub recursive: bool,
}

/// `holdfast program callers`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast program callers

Runs as root, in the foreground; the package's unit holdfast-callers.service does it. It identifies the programs that
open files with rules (`holdfast program acl`), for the mounts of all users of this machine, and decides nothing itself.
While it does not run, those files are refused.")]
pub struct Callers {
    /// Where mounts find it.
    #[arg(long, value_name = "PATH", default_value = holdfast_program_identity::SOCKET)]
    pub socket: PathBuf,
}

/// `holdfast program run`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast program run -- /usr/bin/ssh host
  holdfast program run --as pkg:/etc/holdfast/packager.pub/accounting -- /usr/bin/ledger

The program begins without the caller's environment (but for a few variables such as HOME and LANG) and descriptors,
can gain no privileges, and cannot be traced or looked into by other processes of its user. It runs from a private copy
in memory, so programs that look for files beside their own do not find them. What it is is said on standard error.

The helper (`holdfast program callers`) sees that it begins so. Only then rules without +plain let it in; its children,
and what it becomes, are not started clean.")]
pub struct Run {
    /// Socket of the helper.
    #[arg(long, value_name = "PATH", default_value = holdfast_program_identity::SOCKET)]
    pub callers: PathBuf,
    /// Who it must be: prog:PATH, hash:HEX or pkg:KEY/NAME; if it is not, it is not started.
    #[arg(long = "as", value_name = "WHO")]
    pub expected: Option<String>,
    /// The program (a path) and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<std::ffi::OsString>,
}

/// `holdfast program why`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast program why /mnt/team/id_ed25519
  holdfast program why /mnt/team/id_ed25519 /usr/bin/cat
  holdfast program why /mnt/team/id_ed25519 4711
  holdfast program why /mnt/alice/plans.txt user:bob

Without PROGRAM, who was refused lately. A running process (by number) is judged as it is now, which takes root; a
program as it would be if it were started clean (`holdfast program run`).")]
pub struct Why {
    /// File in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Path of a program, or number of a process; on a volume also user:NAME and whatever an ACL can name.
    #[arg(value_name = "PROGRAM|PID|WHO")]
    pub program: Option<String>,
}

/// `holdfast program`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast program acl set /mnt/team/id_ed25519 prog:/usr/bin/ssh=r
  holdfast program run -- /usr/bin/ssh -i /mnt/team/id_ed25519 host
  holdfast program why /mnt/team/id_ed25519 /usr/bin/cat

docs/programs.md tells what rules for programs withstand.")]
pub struct Program {
    /// What to do.
    #[command(subcommand)]
    pub command: ProgramCommand,
}

/// Rules for programs, and programs under them.
#[derive(Debug, Subcommand)]
pub enum ProgramCommand {
    /// Say which programs of this machine may open a file; on volumes, also which users.
    Acl(Acl),
    /// Say why a program is let in to a file or refused, and who was.
    Why(Why),
    /// Start a program clean, so that files with rules can tell it from others.
    Run(Run),
    /// Run the helper that identifies programs (as root).
    Callers(Callers),
    /// Sign a list of a package's programs, for rules of the form pkg:KEY/NAME.
    Sign(ProgramSign),
    /// Print the hash of programs, as rules name them, and whether they count as interpreters.
    Show(ProgramShow),
}

/// `holdfast program sign`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast program sign --key packager.key --name openssh --out /etc/holdfast/programs.d/openssh-9.7.hfpkg /usr/bin/ssh

Mounts look for manifests (*.hfpkg) in /etc/holdfast/programs.d and ~/.config/holdfast/programs. All that are there
count: remove those of versions that should be let in no more.")]
pub struct ProgramSign {
    /// The packager's key.
    #[arg(long, value_name = "KEY")]
    pub key: PathBuf,
    /// The package.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// File to write; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Its programs.
    #[arg(value_name = "PROGRAM", required = true)]
    pub programs: Vec<PathBuf>,
}

/// `holdfast program show`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast program show /usr/bin/ssh")]
pub struct ProgramShow {
    /// Programs.
    #[arg(value_name = "PROGRAM", required = true)]
    pub programs: Vec<PathBuf>,
}

/// `holdfast volume owner`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume owner give /mnt/alice/plans.txt --to bob")]
pub struct Owner {
    /// What to do.
    #[command(subcommand)]
    pub command: OwnerCommand,
}

/// Owners of files on volumes.
#[derive(Debug, Subcommand)]
pub enum OwnerCommand {
    /// Show whose a file is, if it is yours.
    Show(OwnerFile),
    /// Give a file away, with what is in it, as soon as its new owner accepts.
    Give(OwnerGive),
    /// Accept a file that its owner gives.
    Accept(OwnerFile),
}

/// `holdfast volume owner show`, `accept`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume owner show /mnt/alice/plans.txt
  holdfast volume owner accept /mnt/bob/plans.txt

Nobody becomes an owner without accepting it; the file's ACL is the new owner's then. What was given is forgotten when the
volume is unmounted: it is given anew.")]
pub struct OwnerFile {
    /// File on a volume, through a mount of your own.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `holdfast volume owner give`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume owner give /mnt/alice/plans.txt --to bob")]
pub struct OwnerGive {
    /// File on a volume, through a mount of your own.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A user's name, or whatever an ACL can name.
    #[arg(long, value_name = "WHO")]
    pub to: String,
}

/// `holdfast volume credential`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume credential issue --key alice.key --to user:bob --may read --file /mnt/alice/src.tar \
    --out build.cred")]
pub struct Credential {
    /// What to do.
    #[command(subcommand)]
    pub command: CredentialCommand,
}

/// Credentials on volumes.
#[derive(Debug, Subcommand)]
pub enum CredentialCommand {
    /// Let somebody act in your name, on a volume, within limits, until it is revoked.
    Issue(CredentialIssue),
    /// Hand on what was delegated to you, or less.
    Delegate(CredentialDelegate),
    /// Take credentials back, with effect for what is open.
    Revoke(CredentialRevoke),
    /// Show what a file of credentials says.
    Show(CredentialShow),
    /// Have a session use credentials, or learn that they were revoked.
    Present(CredentialPresent),
}

/// What a credential is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum May {
    /// Read.
    Read,
    /// Change what is there.
    Write,
    /// See owner and ACL.
    Look,
    /// Change the ACL.
    ChangeAcls,
    /// Give it away, take what is given, grow and cut files.
    Chown,
}

/// `holdfast volume credential issue`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume credential issue --key alice.key --to user:bob --may read --file /mnt/alice/src.tar \
    --out build.cred
  holdfast volume credential issue --key alice.key --to key:job.pub --may read,write --volume /mnt/alice --days 30 \
    --out job.cred
  holdfast volume credential issue --key alice.key --to session:alice --volume 0123456789abcdef0123456789abcdef \
    --out alice.cred

The volume must be mounted with your public key (`holdfast volume mount --user-key alice=alice.pub`). WHO is as in
`holdfast program acl set`, or session:WHO: the session that is started for this user (or key:KEY), which speaks for you
only by this credential. With --file it holds for the blocks that the files have now: what they grow by later is not part of it.")]
pub struct CredentialIssue {
    /// Your key.
    #[arg(long, value_name = "KEY")]
    pub key: PathBuf,
    /// Who may.
    #[arg(long, value_name = "WHO")]
    pub to: String,
    /// What [default: everything].
    #[arg(long, value_delimiter = ',', value_name = "OPERATION")]
    pub may: Vec<May>,
    /// Only these files, through a mount of yours [default: all that is yours].
    #[arg(long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A mount of the volume, or its identity [default: that of the files].
    #[arg(long, value_name = "DIR|ID")]
    pub volume: Option<String>,
    /// For so many days [default: until it is revoked].
    #[arg(long, value_name = "DAYS")]
    pub days: Option<u32>,
    /// File to write; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// `holdfast volume credential delegate`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume credential delegate --key job.key --from job.cred --to user:carol --may read --out carol.cred")]
pub struct CredentialDelegate {
    /// The key of who was delegated to.
    #[arg(long, value_name = "KEY")]
    pub key: PathBuf,
    /// What was delegated to you.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// Who may.
    #[arg(long, value_name = "WHO")]
    pub to: String,
    /// What [default: what was delegated to you].
    #[arg(long, value_delimiter = ',', value_name = "OPERATION")]
    pub may: Vec<May>,
    /// Only these files, through a mount of yours.
    #[arg(long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// For so many days [default: until it, or what it rests on, is revoked].
    #[arg(long, value_name = "DAYS")]
    pub days: Option<u32>,
    /// File to write; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// `holdfast volume credential revoke`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume credential revoke --key alice.key --credential build.cred --mount /mnt/alice
  holdfast volume credential revoke --key alice.key --all --out lost.revoked

A revocation is kept in the policy table of the volume that it was presented to, before this command ends, and holds from
then on, after restarts too. Volumes that have not heard of it go on; give them the file (`holdfast volume credential
present`).")]
pub struct CredentialRevoke {
    /// The key that signed what is to end.
    #[arg(long, value_name = "KEY")]
    pub key: PathBuf,
    /// The link of this chain that the key signed, and all that rests on it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["serial", "before", "all"])]
    pub credential: Option<PathBuf>,
    /// The one of this number.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["before", "all"])]
    pub serial: Option<u64>,
    /// All of lower numbers.
    #[arg(long, value_name = "NUMBER", conflicts_with = "all")]
    pub before: Option<u64>,
    /// All, for good: the key is worth nothing there any more.
    #[arg(long)]
    pub all: bool,
    /// Mounts of volumes that are to know; may be given several times.
    #[arg(long = "mount", value_name = "DIR")]
    pub mounts: Vec<PathBuf>,
    /// File to write, for volumes elsewhere; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `holdfast volume credential show`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume credential show build.cred")]
pub struct CredentialShow {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `holdfast volume credential present`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume credential present /mnt/bob build.cred")]
pub struct CredentialPresent {
    /// A mount of the volume, of the session that is to use them.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}
