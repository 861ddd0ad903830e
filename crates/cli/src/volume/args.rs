//! The command line of `holdfast volume`.

use clap::{Args, Subcommand, ValueEnum};
use holdfast_export::Address;
use std::path::PathBuf;

/// What can be done with protected volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Protect a disk or an image, with the data that is on it.
    Protect(Protect),
    /// Offer a protected volume to file systems, every block verified.
    Attach(Attach),
    /// Make a disk or a card a FAT32 file system in which every byte has an owner; what is on it is lost.
    Format(Format),
    /// Take over a card or disk with FAT32 file systems, with what is on it: every file gets an owner.
    Adopt(Adopt),
    /// Mount such a file system, its parts in sandboxes.
    Mount(Mount),
    /// End an attachment, after writing everything.
    Detach(Detach),
    /// List the volumes that this machine knows.
    List,
    /// Say how volumes are: log, bad blocks, scrub, anchor.
    Status(Status),
    /// Read and verify every block of an attached volume.
    Scrub(Scrub),
    /// Mend bad blocks of an attached volume from a copy that need not be trusted.
    Repair(Repair),
    /// Bring a volume in order after a crash, without attaching it.
    Recover(Recover),
    /// Move a volume to another key.
    Rekey(Rekey),
    /// Fit a volume to a device that has grown or is to shrink, or make its log larger.
    Resize(Resize),
    /// Give the plain disk back.
    Unprotect(Unprotect),
    /// Show, export and import what this machine knows of how new a volume is.
    Anchor(Anchor),
    /// Forget a volume whose log or key is lost.
    Forget(Forget),
}

/// A volume that is not attached.
#[derive(Clone, Debug, Args)]
pub struct Opening {
    /// The disk or image.
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Its log [default: as this machine remembers it].
    #[arg(long, value_name = "LOG")]
    pub log: Option<PathBuf>,
    /// Its key file [default: as this machine remembers it].
    #[arg(long, value_name = "KEY")]
    pub key: Option<PathBuf>,
    /// File that remembers how new the volume is [default: in the state directory, or as given before].
    #[arg(long, value_name = "FILE")]
    pub anchor: Option<PathBuf>,
    /// Bind the anchor to a counter of this machine's TPM 2: an older copy of the anchor is refused then, whoever puts it
    /// back. Remembered; to be said each time if what this machine remembers may be put back as well.
    #[arg(long)]
    pub tpm: bool,
    /// Accept a volume of which nothing is known here: an older state of disk and log together is not noticed, this once.
    #[arg(long)]
    pub freshness_unknown: bool,
}

impl Opening {
    /// These arguments, as the code that opens a volume takes them.
    pub fn opening(&self) -> holdfast_daemon::volumes::opening::Opening {
        let Opening { device, log, key, anchor, tpm, .. } = self.clone();
        holdfast_daemon::volumes::opening::Opening { device, log, key, anchor, tpm }
    }
}

/// `holdfast volume protect`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume protect disk.img --log disk.log --key disk.key
  holdfast volume protect /dev/sdb --log /dev/nvme0n1p4 --key /root/sdb.key
  holdfast volume protect new.img --log new.log --key new.key --empty

DEVICE stays as it is: its blocks are read, and their hashes go to the log. Nobody may use it meanwhile. Ctrl-C stops,
and a power cut may: the same command goes on where it was. If DEVICE was used in between, it begins anew, or say so
with --from-start.

A LOG that does not exist becomes a file of the right size; a KEY that does not exist is made (mode 0600). Keep a copy of
the key where the disk and the log are not: without it the log is of no use (the disk is a plain disk still), and whoever
has it can make blocks that pass.")]
pub struct Protect {
    /// The disk or image.
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// File or device for its log. VolumeRecord a hundredth of the volume, and a MiB to 256 MiB more.
    #[arg(long, value_name = "LOG")]
    pub log: PathBuf,
    /// Key file; made when it does not exist.
    #[arg(long, value_name = "KEY")]
    pub key: PathBuf,
    /// MiB of the log's circular part [default: a sixteenth of the volume, 1 at least, 256 at most].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub ring_mib: Option<u64>,
    /// Give up what is on DEVICE, without reading it: all of it reads as zeroes until it is written.
    #[arg(long)]
    pub empty: bool,
    /// Begin anew, although a part is done.
    #[arg(long)]
    pub from_start: bool,
    /// Use LOG although it holds something else, or the log of a volume that is gone; that is lost.
    #[arg(long)]
    pub overwrite_log: bool,
}

/// `holdfast volume format`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume format card.img --sidecar card.d
  holdfast volume format /dev/sdb --sidecar /root/sdb.d --label PHOTOS --erase

DEVICE becomes a plain disk with an MBR and one FAT32 partition, which any system reads. Beside it, in the directory
--sidecar, are its key, its log, and the table that says who owns each block: without them it is a plain disk, and nothing
says whose its files are. Keep a copy of the key elsewhere. docs/volumes.md says what is promised.")]
pub struct Format {
    /// The disk, card or image, of 64 MiB at least.
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Directory for key, log and policy table; made when it does not exist.
    #[arg(long, value_name = "DIR")]
    pub sidecar: PathBuf,
    /// Name of the file system, 11 characters at most.
    #[arg(long, value_name = "LABEL", default_value = "HOLDFAST")]
    pub label: String,
    /// KiB of a cluster, 1 to 32 [default: 512 bytes below 256 MiB, else as suits the size].
    #[arg(long, value_name = "KIB", value_parser = cluster_kib)]
    pub cluster_kib: Option<u32>,
    /// The blocks belong to the programs that KEY has signed for as NAME (`holdfast program sign`): only such versions of
    /// Holdfast can use them, on any machine. Without this, every version can that this machine runs.
    #[arg(long = "components-signed-by", value_name = "KEY/NAME")]
    pub signed_by: Option<String>,
    /// DEVICE may hold something, which is lost.
    #[arg(long)]
    pub erase: bool,
}

fn cluster_kib(text: &str) -> Result<u32, String> {
    let kib: u32 = text.parse().map_err(|_| "not a number".to_owned())?;
    match kib.is_power_of_two() && kib <= 32 {
        true => Ok(kib),
        false => Err("1, 2, 4, 8, 16 or 32".to_owned()),
    }
}

/// `holdfast volume adopt`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume adopt card.img --sidecar card.d --user alice
  holdfast volume adopt /dev/sdb --sidecar /root/sdb.d --user alice --owner photos=bob --owner 2:music=carol
  holdfast volume adopt card.img --anew --sidecar new.d --owners-from card.d --user alice

The card stays as it is, byte by byte. Its file systems are checked first, by processes that are shut in; one that is
damaged, or is not FAT32, is refused in words. Then every block is hashed: Ctrl-C stops, a power cut may, and the same
command goes on where it was. Every existing file becomes the user's, or whose directory it is in; everything else is
owned by the driver of its partition. After an unmount it is a plain card for any system, at any time; once another system
has written to it, mounting refuses it until it is adopted anew.")]
pub struct Adopt {
    /// The disk, card or image.
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Directory for key, log and policy table; made when it does not exist.
    #[arg(long, value_name = "DIR")]
    pub sidecar: PathBuf,
    /// Whose the files are that are on it.
    #[arg(long, value_name = "USER")]
    pub user: String,
    /// Whose the files below a directory are, of all partitions or of partition N; may be given several times.
    #[arg(long = "owner", value_name = "[N:]DIR=USER", value_parser = owner)]
    pub owners: Vec<(Option<u32>, String, String)>,
    /// The card has a sidecar already, which is given up: what is on the card now counts.
    #[arg(long)]
    pub anew: bool,
    /// The sidecar that it had: files that are where they were, with the same content, keep their owners.
    #[arg(long, value_name = "DIR", requires = "anew")]
    pub owners_from: Option<PathBuf>,
    /// The blocks belong to the programs that KEY has signed for as NAME (`holdfast program sign`): only such versions of
    /// Holdfast can use them, on any machine. Without this, every version can that this machine runs.
    #[arg(long = "components-signed-by", value_name = "KEY/NAME")]
    pub signed_by: Option<String>,
}

fn owner(text: &str) -> Result<(Option<u32>, String, String), String> {
    let (directory, user) = text.rsplit_once('=').ok_or("DIR=USER or N:DIR=USER is wanted")?;
    let numbered = directory.split_once(':').and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
    // No name on FAT has a colon.
    match numbered {
        Some((number, rest)) => Ok((Some(number), rest.to_owned(), user.to_owned())),
        None if directory.contains(':') => Err("before the colon goes the number of a partition".to_owned()),
        None => Ok((None, directory.to_owned(), user.to_owned())),
    }
}

/// `holdfast volume mount`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume mount card.img /mnt --sidecar card.d
  holdfast volume mount card.img /mnt/alice --sidecar card.d --user alice --session bob=/mnt/bob
  holdfast volume mount card.img /mnt/1 --sidecar card.d --partition 1 --also at=/mnt/2,partition=2
  holdfast volume mount a.img /mnt/a --sidecar a.d --also at=/mnt/b,device=b.img,sidecar=b.d,user=bob
  holdfast volume mount card.img /mnt/alice --sidecar card.d --user alice --session prog:/usr/bin/ssh=/mnt/alice-ssh
  holdfast volume mount card.img /mnt/bob --sidecar card.d --user bob --user-key alice=alice.pub --credential bob=job.cred
  umount /mnt

Runs until the last of its mounts is unmounted, or until Ctrl-C. Each mount speaks for one user: files that this user
makes are theirs, and other users of the same file system see their names and sizes only, until `holdfast program acl set`
says otherwise. A session for a program (prog:PATH, hash:HEX or pkg:KEYFILE/NAME) opens files for processes of that program
only, which the helper `holdfast program callers` identifies, and reads what ACLs give the program. Programs of ordinary
users are started with `holdfast program run`, so that no other process takes what they read; a session for
prog:PATH+plain (with +plain in the ACL too) takes them as they are. Mounted by root, a session of a user of this machine
obeys that user alone.

A user with a key (--user-key) proves who they are: their session speaks for nobody until it has a credential that the key
signed (--credential, or `holdfast volume credential present`). All else that is said of users and groups is the word of
whoever mounts.

Several partitions and cards in one command share memory for blocks; each partition has a driver of its own, and each bus.
`holdfast components` shows the processes.")]
pub struct Mount {
    /// The disk, card or image.
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Where.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Its key, log and policy table.
    #[arg(long, value_name = "DIR")]
    pub sidecar: PathBuf,
    /// The partition, by its number in the partition table [default: the only one with FAT32].
    #[arg(long, value_name = "N")]
    pub partition: Option<u32>,
    /// For whom [default: who runs this].
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Another user's mount, or a program's; may be given several times.
    #[arg(long = "session", value_name = "WHO=DIR", value_parser = session)]
    pub sessions: Vec<(String, PathBuf)>,
    /// Another mount: at=DIR, and what differs from the first of device=DEVICE, sidecar=DIR, partition=N, user=USER, with
    /// commas between; may be given several times.
    #[arg(long, value_name = "at=DIR,KEY=VALUE", value_parser = also)]
    pub also: Vec<Also>,
    /// A user's public key, so that they prove who they are; may be given several times.
    #[arg(long = "user-key", value_name = "USER=KEY", value_parser = session)]
    pub user_keys: Vec<(String, PathBuf)>,
    /// Who is in a group; may be given several times.
    #[arg(long = "group", value_name = "GROUP=USER,...", value_parser = group)]
    pub groups: Vec<(String, Vec<String>)>,
    /// Credentials that a session begins with; may be given several times.
    #[arg(long = "credential", value_name = "WHO=FILE", value_parser = session)]
    pub credentials: Vec<(String, PathBuf)>,
    /// Where the helper listens that identifies programs, if not at its usual place.
    #[arg(long, value_name = "SOCKET")]
    pub callers: Option<PathBuf>,
    /// Let other users of this machine use the mounts; default only who runs this.
    #[arg(long)]
    pub allow_other: bool,
    /// MiB of memory for blocks.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=65536))]
    pub cache_mib: u32,
    /// Accept a disk of which nothing is known here: an older state of disk and sidecar together is not noticed.
    #[arg(long)]
    pub freshness_unknown: bool,
}

fn session(text: &str) -> Result<(String, PathBuf), String> {
    let (user, directory) = text.rsplit_once('=').ok_or("WHO=PATH is wanted")?;
    Ok((user.to_owned(), PathBuf::from(directory)))
}

/// Another mount beside the first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Also {
    /// Where.
    pub directory: PathBuf,
    /// Another card.
    pub device: Option<PathBuf>,
    /// That card's sidecar.
    pub sidecar: Option<PathBuf>,
    /// Which partition of it.
    pub partition: Option<u32>,
    /// For whom.
    pub user: Option<String>,
}

fn also(text: &str) -> Result<Also, String> {
    let mut also = Also::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
        match key {
            "at" => also.directory = value.into(),
            "device" => also.device = Some(value.into()),
            "sidecar" => also.sidecar = Some(value.into()),
            "partition" => {
                also.partition =
                    Some(value.parse().map_err(|_| format!("{value:?} is no number of a partition"))?);
            }
            "user" => also.user = Some(value.to_owned()),
            _ => return Err(format!("{key:?} is none of at, device, sidecar, partition, user")),
        }
    }
    match also.directory.as_os_str().is_empty() {
        true => Err("at=DIR is missing: where it is to be mounted".to_owned()),
        false => Ok(also),
    }
}

fn group(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, members) = text.split_once('=').ok_or("GROUP=USER,... is wanted")?;
    Ok((name.to_owned(), members.split(',').map(str::to_owned).collect()))
}

/// `holdfast volume attach`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume attach disk.img --log disk.log --key disk.key
  holdfast volume attach disk.img --loop
  holdfast volume attach /dev/sdb --loop --anchor-every-flush
  holdfast volume attach /dev/sdb --loop --tpm
  holdfast volume attach disk.img --nbd unix:/run/disk.sock
  holdfast volume attach disk.img --ublk
  holdfast volume attach disk.img --log disk.log --key disk.key --freshness-unknown
  holdfast volume attach disk.img --loop --read-only

A process in the background offers the volume as one file, called `disk`, in DIR, for losetup, qemu or any program that
takes an image; with --loop as a loop device, with --nbd at an address, with --ublk as a block device. What it is called
is printed. Bad blocks are errors (EIO) for whoever reads them.

What is known of a volume's newest state is in its anchor, a small file in the state directory. A volume without an
anchor is refused, as it may be an old copy; `holdfast volume anchor import` brings one from another machine.")]
pub struct Attach {
    /// The volume.
    #[command(flatten)]
    pub opening: Opening,
    /// Directory for the file [default: one of its own below /run/holdfast/volumes, or $XDG_RUNTIME_DIR].
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Make a loop device of it (as root).
    #[arg(long = "loop")]
    pub loop_device: bool,
    /// Serve it to NBD clients (qemu, nbd-client, nbdcopy) at unix:PATH, or at IP:PORT or :PORT of this machine; any user
    /// of this machine can connect to a port.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["loop_device", "ublk", "directory"])]
    pub nbd: Option<Address>,
    /// Make a ublk device of it (as root; Linux 6.5 with ublk_drv).
    #[arg(long, conflicts_with_all = ["loop_device", "directory"])]
    pub ublk: bool,
    /// Sectors of the loop device: 4096 bytes where what is on it allows (auto), 512 or 4096.
    #[arg(long, value_name = "auto|512|4096", default_value = "auto", requires = "loop_device")]
    pub sector_size: SectorSize,
    /// Change nothing: neither disk nor log nor anchor. What a crash left to be recovered is recovered in memory. For a
    /// volume that stopped because a disk is full, failing or read-only. A file system with a journal may have to be
    /// mounted with `-o ro,noload` (xfs: `-o ro,norecovery`).
    #[arg(long, conflicts_with = "anchor_every_flush")]
    pub read_only: bool,
    /// Write the anchor at every flush, before it is acknowledged: nothing flushed can be taken back unnoticed. Costs one
    /// more sync of the disk that has the anchor.
    #[arg(long)]
    pub anchor_every_flush: bool,
    /// Seconds after which requests that do not get on at all are ended with an error, so that no program hangs for ever; 0
    /// means never.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub watchdog: u64,
    /// Serve it here, until it is detached.
    #[arg(long)]
    pub foreground: bool,
    /// (This is the background process.)
    #[arg(long, hide = true)]
    pub background_process: bool,
}

/// Sectors of a loop device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SectorSize {
    /// What is on the volume decides.
    Auto,
    /// 512 bytes: any file system.
    #[value(name = "512")]
    Small,
    /// 4096 bytes: no block is read to write a part of it.
    #[value(name = "4096")]
    Large,
}

impl SectorSize {
    /// Bytes of a sector; `None`: what is on the volume decides.
    pub fn bytes(self) -> Option<u32> {
        match self {
            SectorSize::Auto => None,
            SectorSize::Small => Some(512),
            SectorSize::Large => Some(4096),
        }
    }
}

/// A volume that this machine knows.
#[derive(Debug, Args)]
pub struct VolumeSelector {
    /// The volume: its disk, its log, its ID or the beginning of it, or where it is attached.
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
}

/// `holdfast volume detach`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume detach disk.img
  holdfast volume detach /dev/loop0

Unmount first: a volume that is in use stays attached.")]
pub struct Detach {
    /// The volume.
    #[command(flatten)]
    pub which: VolumeSelector,
}

/// `holdfast volume status`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume status
  holdfast volume status disk.img --json

Exit code 65 if any of them has bad blocks, 74 if one has stopped after a failure.")]
pub struct Status {
    /// Only this one: its disk, its log, its ID or the beginning of it, or where it is attached.
    #[arg(value_name = "VOLUME")]
    pub volume: Option<PathBuf>,
}

/// `holdfast volume scrub`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume scrub disk.img
  holdfast volume scrub disk.img --rate 200
  holdfast volume scrub disk.img --background

The volume stays in use. Ctrl-C stops it, as does detaching; the next scrub goes on from there. Exit code 65 if there are
bad blocks.")]
pub struct Scrub {
    /// The volume.
    #[command(flatten)]
    pub which: VolumeSelector,
    /// MiB a second, at most; 0 means as fast as it goes.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    pub rate: u64,
    /// Begin anew, although an earlier scrub is not finished.
    #[arg(long)]
    pub from_start: bool,
    /// Don't wait for its end; `holdfast volume status` tells.
    #[arg(long, conflicts_with = "stop")]
    pub background: bool,
    /// Stop one that is under way.
    #[arg(long)]
    pub stop: bool,
}

/// `holdfast volume repair`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume scrub disk.img
  holdfast volume repair disk.img --from /backup/disk.img

Only what REPLICA has exactly as it was written last is taken from it. Exit code 65 if bad blocks are left.")]
pub struct Repair {
    /// The volume.
    #[command(flatten)]
    pub which: VolumeSelector,
    /// A copy of the disk, of any age.
    #[arg(long, value_name = "REPLICA")]
    pub from: PathBuf,
}

/// `holdfast volume recover`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume recover disk.img

Attaching does the same. After it, nothing is left to do for the next opening.")]
pub struct Recover {
    /// The volume.
    #[command(flatten)]
    pub opening: Opening,
}

/// `holdfast volume rekey`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume rekey disk.img --new-key disk.key2
  holdfast volume rekey /dev/sdb --new-key sdb.key2 --new-log /dev/sdc1

Every block is verified under the old key and hashed under the new one, into a second log; the disk is not touched. Until
that is whole, the volume is what it was, under the old key. Ctrl-C stops, and a power cut may: the same command goes on
where it was, or begins anew if the volume was attached in between. A log that is a file is replaced at the end.")]
pub struct Rekey {
    /// The volume.
    #[command(flatten)]
    pub opening: Opening,
    /// The new key file; made when it does not exist.
    #[arg(long, value_name = "KEY")]
    pub new_key: PathBuf,
    /// File or device for the new log [default: beside the old one, which it then replaces].
    #[arg(long, value_name = "LOG")]
    pub new_log: Option<PathBuf>,
    /// MiB of the new log's circular part [default: as for `protect`].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub ring_mib: Option<u64>,
}

/// `holdfast volume resize`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  truncate -s 20G disk.img && holdfast volume resize disk.img
  holdfast volume resize disk.img --size 10G && truncate -s 10G disk.img
  holdfast volume resize disk.img --ring-mib 512

What is new is taken over as it is there. Before shrinking, shrink the file system. It goes as `rekey` does, with the same
key: into a second log, so that it can be interrupted anywhere.")]
pub struct Resize {
    /// The volume.
    #[command(flatten)]
    pub opening: Opening,
    /// New size in bytes, or with K, M, G, T [default: that of DEVICE].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// File or device for the new log [default: beside the old one, which it then replaces].
    #[arg(long, value_name = "LOG")]
    pub new_log: Option<PathBuf>,
    /// MiB of the new log's circular part [default: as for `protect`].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub ring_mib: Option<u64>,
}

/// A number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], letter.to_ascii_uppercase()),
        _ => (text, ' '),
    };
    let shift = match unit {
        ' ' => 0,
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return Err("not a number of bytes, nor one with K, M, G or T".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes, nor one with K, M, G or T")?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".into())
}

/// `holdfast volume unprotect`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume unprotect disk.img --remove-log

Everything that is in the log only is written to the disk, and what was discarded becomes zeroes; then the disk is by
itself what the volume was. Run `scrub` before, to know that all of it is right.")]
pub struct Unprotect {
    /// The volume.
    #[command(flatten)]
    pub opening: Opening,
    /// Remove the log: a file is deleted, of a device the header is cleared.
    #[arg(long)]
    pub remove_log: bool,
}

/// `holdfast volume forget`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume forget disk.img

What this machine remembers of the volume, its anchor too, is removed. The disk is a plain disk, of which nothing is
known; `protect` takes it over as it is.")]
pub struct Forget {
    /// The volume.
    #[command(flatten)]
    pub which: VolumeSelector,
}

/// `holdfast volume anchor`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast volume anchor export disk.img --to disk.anchor
  holdfast volume anchor import disk.anchor

An anchor is one line: the volume, how far its log was durable, and the tag of all before. It is no secret, but whoever can
alter it can have an old copy of the volume accepted.")]
pub struct Anchor {
    /// What to do.
    #[command(subcommand)]
    pub command: AnchorCommand,
}

/// Anchors.
#[derive(Debug, Subcommand)]
pub enum AnchorCommand {
    /// Print a volume's anchor.
    Show(VolumeSelector),
    /// Copy a volume's anchor to a file, for another machine.
    Export {
        /// The volume.
        #[command(flatten)]
        which: VolumeSelector,
        /// File to write; never overwritten.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Remember an anchor from another machine; never an older one than is known here.
    Import {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::{also, owner, size};

    /// Owners of directories and further mounts are read as they are meant, and what is unclear is refused.
    #[test]
    fn owners_and_mounts() {
        assert_eq!(owner("photos=bob"), Ok((None, "photos".to_owned(), "bob".to_owned())));
        assert_eq!(owner("2:a=b/c=bob"), Ok((Some(2), "a=b/c".to_owned(), "bob".to_owned())));
        assert!(owner("photos").is_err() && owner("x:photos=bob").is_err());
        let two = also("at=/mnt/2,partition=2").expect("it is whole");
        assert_eq!((two.directory.to_str(), two.partition, two.device), (Some("/mnt/2"), Some(2), None));
        for text in ["", "partition=2", "at=", "at=/mnt,partition=two", "at=/mnt,what=2", "/mnt"] {
            assert!(also(text).is_err(), "{text}");
        }
    }

    /// Sizes have units, and nothing overflows.
    #[test]
    fn sizes() {
        for (text, expected) in [("4096", Some(4096)), ("10G", Some(10 << 30)), ("1t", Some(1 << 40))] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1X", "99999999T", "1é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
