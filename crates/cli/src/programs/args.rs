//! The command line of rules for programs.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `holdfast acl`
#[derive(Debug, Args)]
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
    Get(AclGet),
    /// Take programs out of the rules.
    Remove(AclRemove),
    /// End all rules: every program may use the file again.
    Clear(AclClear),
}

/// `holdfast acl set`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast acl set /mnt/team/id_ed25519 prog:/usr/bin/ssh=r
  holdfast acl set /mnt/team/ledger prog:/usr/bin/ledger=rw pkg:/etc/holdfast/packager.pub/accounting=rw
  holdfast acl set --recursive /mnt/team/keys prog:/usr/bin/ssh=r

From then on only these programs open the file on this machine, and on others that honour rules; everybody else gets
EACCES. WHO is prog:PATH (the program that is there now, by the hash of its file), hash:HEX, pkg:KEY/NAME (whatever a
manifest lists that this key signed, see `holdfast program sign`; KEY is a public key file) or any. Rights are r or rw.
Behind them, +interpreter lets in a program that runs what it is given (python, sh), +jit one that makes code while it
runs. What is made in a directory with rules begins with the same; what is there already gets them with --recursive.

The helper `holdfast callers` must run as root: without it, files with rules are refused to everybody.
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

/// `holdfast acl get`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast acl get /mnt/team/id_ed25519")]
pub struct AclGet {
    /// File or directory in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `holdfast acl remove`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast acl remove /mnt/team/id_ed25519 prog:/usr/bin/ssh

The last rule cannot be removed so, as nobody could use the file any more or everybody could: set others first, or
`holdfast acl clear` it.")]
pub struct AclRemove {
    /// File or directory in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Programs, as in `acl set` but without rights.
    #[arg(value_name = "WHO", required = true)]
    pub who: Vec<String>,
}

/// `holdfast acl clear`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast acl clear --recursive /mnt/team/keys")]
pub struct AclClear {
    /// File or directory in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Everything below a directory too.
    #[arg(long, short)]
    pub recursive: bool,
}

/// `holdfast callers`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast callers

Runs as root, in the foreground; the package's unit holdfast-callers.service does it. It identifies the programs that
open files with rules (`holdfast acl`), for the mounts of all users of this machine, and decides nothing itself.
While it does not run, those files are refused.")]
pub struct Callers {
    /// Where mounts find it.
    #[arg(long, value_name = "PATH", default_value = holdfast_callers::SOCKET)]
    pub socket: PathBuf,
}

/// `holdfast run`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast run -- /usr/bin/ssh host
  holdfast run --as pkg:/etc/holdfast/packager.pub/accounting -- /usr/bin/ledger

The program begins without the caller's environment (but for a few variables such as HOME and LANG) and descriptors,
can gain no privileges, and cannot be traced or looked into by other processes of its user. It runs from a private copy
in memory, so programs that look for files beside their own do not find them. What it is is said on standard error.")]
pub struct Run {
    /// Who it must be: prog:PATH, hash:HEX or pkg:KEY/NAME; if it is not, it is not started.
    #[arg(long = "as", value_name = "WHO")]
    pub expected: Option<String>,
    /// The program (a path) and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<std::ffi::OsString>,
}

/// `holdfast why`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast why /mnt/team/id_ed25519
  holdfast why /mnt/team/id_ed25519 /usr/bin/cat
  holdfast why /mnt/team/id_ed25519 4711

Without PROGRAM, who was refused lately. A running process (by number) is judged as it is now, which takes root; a
program as it would be if it were started clean (`holdfast run`).")]
pub struct Why {
    /// File in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Path of a program, or number of a process.
    #[arg(value_name = "PROGRAM|PID")]
    pub program: Option<String>,
}

/// `holdfast program`
#[derive(Debug, Args)]
pub struct Program {
    /// What to do.
    #[command(subcommand)]
    pub command: ProgramCommand,
}

/// Programs and manifests.
#[derive(Debug, Subcommand)]
pub enum ProgramCommand {
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
