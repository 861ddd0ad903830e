//! `mount.holdfast`: the program that mount(8) runs for a line of type `holdfast` in fstab. It is this
//! program under another name, and translates the options of mount(8) into those of `holdfast mount`.
//!
//! An option that asks for something is either obeyed or refused. Ignored are only options that are meant for
//! other programs (when to mount, who may) and those that are always in effect.

use crate::args::{Cli, Command};
use crate::output::Format;
use crate::reading::source::SCHEME;
use clap::Parser;
use holdfast_failure::{Exit, Failure, Outcome};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command as Process, ExitCode, Stdio};

/// The name under which mount(8) runs this program.
const NAME: &str = "mount.holdfast";
const USAGE: &str = "usage: mount.holdfast hf://HOST:PORT/FSID DIR [-sfnv] -o key=FILE[,OPTION...], or hf+release:ID@MIRROR DIR";

/// The mounts to which an option applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum For {
    Any,
    Writable,
    Release,
}

/// Options with a value, and their names in `holdfast mount`.
const VALUED: [(&str, &str, For); 22] = [
    ("key", "--key", For::Writable),
    ("state", "--state", For::Any),
    ("cache", "--cache", For::Any),
    ("cache_mib", "--cache-mib", For::Any),
    ("timeout", "--timeout", For::Writable),
    ("write_back_mib", "--write-back-mib", For::Writable),
    ("transfer", "--transfer", For::Writable),
    ("transport", "--transport", For::Writable),
    ("map_user", "--map-user", For::Writable),
    ("map_group", "--map-group", For::Writable),
    ("unmapped_chown", "--unmapped-chown", For::Writable),
    ("witness", WITNESS, For::Writable),
    ("witness_quorum", "--witness-quorum", For::Writable),
    ("stale_after", "--stale-after", For::Writable),
    ("when_stale", "--when-stale", For::Writable),
    ("peers_listen", "--peers-listen", For::Writable),
    ("peer_timeout", "--peer-timeout", For::Writable),
    ("when_peer_lost", "--when-peer-lost", For::Writable),
    ("revocations", "--revocations", For::Any),
    ("id", "--id", For::Release),
    ("mirror", MIRROR, For::Release),
    ("refresh", "--refresh", For::Release),
];
/// The prefixes of addresses of releases and mirrors.
const MIRRORS: [&str; 5] = [SCHEME, "http://", "https://", "s3://", "file://"];
/// Options that may be given several times.
const MIRROR: &str = "--mirror";
const WITNESS: &str = "--witness";
/// Options without a value.
const PLAIN: [(&str, &str, For); 13] = [
    ("allow_other", "--allow-other", For::Any),
    ("ro", "--read-only", For::Any),
    ("noexec", "--no-exec", For::Any),
    ("hard", "--hard", For::Writable),
    ("local_locks", "--local-locks", For::Writable),
    ("write_back", "--write-back", For::Writable),
    ("no_leases", "--no-leases", For::Writable),
    ("no_gather", "--no-gather", For::Writable),
    ("no_send_again", "--no-send-again", For::Writable),
    ("peers", "--peers", For::Writable),
    ("no_beacon", "--no-beacon", For::Writable),
    ("allow_stale", "--allow-stale", For::Release),
    ("require_sandbox", "--require-sandbox", For::Any),
];
/// Options that restore the default. Of two opposites, the later one is used, as always in fstab.
const UNDONE: [(&str, &str); 3] = [("rw", "--read-only"), ("exec", "--no-exec"), ("soft", "--hard")];
/// Options for other programs: when to mount, and who may.
const FOR_OTHERS: [&str; 15] = [
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser", "owner", "noowner",
    "group", "nogroup", "comment", "helper", "uhelper",
];
/// Options that are in effect for every mount.
const ALWAYS: [&str; 10] = [
    "nosuid",
    "nodev",
    "async",
    "noatime",
    "nodiratime",
    "relatime",
    "norelatime",
    "nomand",
    "silent",
    "loud",
];

/// The command line of mount(8), interpreted.
#[derive(PartialEq, Eq, Debug, Default)]
struct MountCommandLine {
    /// Arguments for `holdfast`.
    arguments: Vec<OsString>,
    /// Whether only the options are checked (`-f`).
    fake: bool,
    /// Whether to print what was done (`-v`).
    verbose: bool,
}

/// Whether the program was called by this name.
pub fn is_meant(name: &OsStr) -> bool {
    Path::new(name).file_name().is_some_and(|name| name == NAME)
}

/// Runs `mount.holdfast`, and returns its exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match run(&arguments.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{NAME}: {failure}");
            ExitCode::from(code(failure.code))
        }
    }
}

/// The exit code in the terms of mount(8), "Exit status".
fn code(code: Exit) -> u8 {
    match code {
        Exit::Usage | Exit::NotAllowed => 1,
        Exit::System => 2,
        Exit::Internal => 4,
        _ => 32,
    }
}

fn run(arguments: &[OsString]) -> Outcome {
    let wish = translate(arguments)?;
    let cli = Cli::try_parse_from(&wish.arguments).map_err(|error| {
        // clap's message about the long option also fits the short one.
        let said = error.to_string();
        wrong(said.lines().next().unwrap_or(USAGE).trim_start_matches("error: "))
    })?;
    cli.heed();
    let Command::Mount(mount) = &cli.command else { return Err(wrong(USAGE)) };
    if wish.fake {
        return Ok(());
    }
    if super::release::is_meant(mount) {
        return by_command(&wish);
    }
    let done = super::establish(mount, &cli.directories.chosen())?;
    match done.filter(|_| wish.verbose) {
        Some((done, _)) => Format::Text
            .print(&done, |done| format!("{} is mounted on {}", done.address, done.directory.display())),
        None => Ok(()),
    }
}

/// Runs `holdfast mount` as a process of its own, because a release is served by the command that is asked to
/// mount it.
fn by_command(wish: &MountCommandLine) -> Outcome {
    let output = Process::new("/proc/self/exe")
        .arg0(&wish.arguments[0])
        // What follows is the address of a release and a mount point, neither of which begins with a dash.
        .args(wish.arguments[1..].iter().filter(|argument| *argument != "--"))
        .arg("--json")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::new(Exit::System, format!("the command cannot be run: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        // Warnings, such as that the release will expire soon.
        eprint!("{said}");
        if wish.verbose {
            print!("{}", String::from_utf8_lossy(&output.stdout));
        }
        return Ok(());
    }
    let (last, before) =
        said.trim_end().rsplit_once('\n').map_or((said.trim_end(), ""), |(before, last)| (last, before));
    before.lines().for_each(|line| eprintln!("{line}"));
    let failure = serde_json::from_str::<serde_json::Value>(last).ok();
    let failure = failure.and_then(|mut said| serde_json::from_value(said["error"].take()).ok());
    Err(failure.unwrap_or_else(|| Failure::new(Exit::Internal, last)))
}

fn wrong(message: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, message)
}

fn translate(arguments: &[OsString]) -> Outcome<MountCommandLine> {
    let mut wish = MountCommandLine::default();
    let mut places = Vec::new();
    let mut options: Vec<&str> = Vec::new();
    let mut sloppy = false;
    let mut given = arguments.iter();
    while let Some(argument) = given.next() {
        let flags = match argument.to_str() {
            Some(text) if text.len() > 1 && text.starts_with('-') => &text[1..],
            _ => {
                places.push(argument);
                continue;
            }
        };
        for (at, flag) in flags.char_indices() {
            match flag {
                's' => sloppy = true,
                'f' => wish.fake = true,
                // There is no mtab that could be left unchanged.
                'n' => {}
                'v' => wish.verbose = true,
                'o' | 't' => {
                    let value = match &flags[at + 1..] {
                        "" => given.next().and_then(|value| value.to_str()).ok_or_else(|| wrong(USAGE))?,
                        value => value,
                    };
                    if flag == 'o' {
                        options.extend(value.split(','));
                    }
                    break;
                }
                _ => return Err(wrong(format!("unknown flag -{flag}")).hint(USAGE)),
            }
        }
    }
    let [source, directory] = places[..] else { return Err(wrong(USAGE)) };
    let is_release = Path::new(source).is_absolute()
        || MIRRORS.iter().any(|scheme| source.as_bytes().starts_with(scheme.as_bytes()));
    let what = if is_release { For::Release } else { For::Writable };
    wish.arguments = ["holdfast", "mount"].map(OsString::from).to_vec();
    wish.arguments.extend(self::options(&options, what, sloppy)?.into_iter().map(OsString::from));
    wish.arguments.extend(["--".into(), source.clone(), directory.clone()]);
    Ok(wish)
}

/// Translates mount options into arguments of `holdfast mount`.
fn options(options: &[&str], what: For, sloppy: bool) -> Outcome<Vec<String>> {
    let mut arguments: Vec<String> = Vec::new();
    for &option in options.iter().filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let find = |table: &[(&str, &'static str, For)]| -> Outcome<Option<&'static str>> {
            match table.iter().find(|(known, ..)| *known == name) {
                Some((_, _, whose)) if *whose != For::Any && *whose != what => Err(wrong(match what {
                    For::Release => format!("option '{name}' is not for releases"),
                    _ => format!("option '{name}' is for releases only"),
                })),
                Some((_, long, _)) => Ok(Some(long)),
                None => Ok(None),
            }
        };
        let undone = || UNDONE.iter().find(|(known, _)| *known == name).map(|(_, long)| *long);
        if let Some(long) = find(&VALUED)? {
            let Some(value) = value.filter(|value| !value.is_empty()) else {
                return Err(wrong(format!("option '{name}' needs a value: {name}=...")));
            };
            // The later of two values is used.
            arguments.retain(|argument| {
                long == MIRROR || long == WITNESS || argument.split('=').next() != Some(long)
            });
            arguments.push(format!("{long}={value}"));
        } else if let (Some(long), None) = (find(&PLAIN)?, value) {
            arguments.retain(|argument| argument != long);
            arguments.push(long.to_owned());
        } else if let (Some(long), None) = (undone(), value) {
            arguments.retain(|argument| argument != long);
        } else if FOR_OTHERS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") {
            // mount(8) passes `user` with a value, too.
        } else if ALWAYS.contains(&name) && value.is_none() {
        } else if !sloppy {
            return Err(refusal(option, name));
        }
    }
    if what == For::Writable && !arguments.iter().any(|argument| argument.starts_with("--key=")) {
        return Err(
            wrong("no key is named").hint("add key=FILE to the options (-o, or the fourth field in fstab)")
        );
    }
    Ok(arguments)
}

fn refusal(option: &str, name: &str) -> Failure {
    match name {
        "suid" | "dev" => {
            wrong(format!("'{option}': a holdfast mount never honours set-uid bits or devices"))
        }
        "remount" => wrong("'remount': options of a mount cannot be changed while it is mounted")
            .hint("unmount it first"),
        "acknowledge_alarm" => {
            wrong("'acknowledge_alarm': an alarm is looked into by a person, each time anew")
                .hint("after that: holdfast mount --acknowledge-alarm ...")
        }
        _ => wrong(format!("unknown option '{option}'")).hint(format!(
            "those of holdfast: {}, {}; generic ones such as noauto, nofail, _netdev and x-... are ignored",
            VALUED.map(|(name, ..)| format!("{name}=...")).join(", "),
            PLAIN.map(|(name, ..)| name).join(", "),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(line: &str) -> Outcome<MountCommandLine> {
        translate(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    fn arguments(options: &str) -> Vec<String> {
        let wish = wish(&format!("hf://h:1/f /mnt -o {options}")).expect("it makes sense");
        let mut text: Vec<String> =
            wish.arguments.into_iter().map(|argument| argument.into_string().expect("text")).collect();
        assert_eq!(text.drain(..2).collect::<Vec<_>>(), ["holdfast", "mount"]);
        assert_eq!(text.split_off(text.len() - 3), ["--", "hf://h:1/f", "/mnt"]);
        text
    }

    fn message(line: &str) -> String {
        let failure = wish(line).expect_err("it is refused");
        assert_eq!(code(failure.code), 1);
        failure.to_string()
    }

    /// Proves: options for Holdfast are passed on, and those for other programs are left out.
    #[test]
    fn options_are_translated() {
        assert_eq!(arguments("key=/k"), ["--key=/k"]);
        assert_eq!(
            arguments(
                "rw,nosuid,nodev,key=/k,_netdev,nofail,x-systemd.automount,X-a=b,user=anna,relatime,defaults"
            ),
            ["--key=/k"]
        );
        assert_eq!(
            arguments(
                "ro,noexec,hard,local_locks,allow_other,key=/a=b,state=/s,cache=-c,cache_mib=5,timeout=7"
            ),
            [
                "--read-only",
                "--no-exec",
                "--hard",
                "--local-locks",
                "--allow-other",
                "--key=/a=b",
                "--state=/s",
                "--cache=-c",
                "--cache-mib=5",
                "--timeout=7"
            ]
        );
        let witnesses =
            "witness=w/1+0a+BA==,witness=w/2+0b+BB==,witness_quorum=1,stale_after=9,when_stale=stop,key=/k";
        assert_eq!(
            arguments(witnesses),
            [
                "--witness=w/1+0a+BA==",
                "--witness=w/2+0b+BB==",
                "--witness-quorum=1",
                "--stale-after=9",
                "--when-stale=stop",
                "--key=/k"
            ]
        );
        let peers = "peers,no_beacon,peers_listen=[::]:7443,peer_timeout=9,when_peer_lost=pause,key=/k";
        assert_eq!(
            arguments(peers),
            [
                "--peers",
                "--no-beacon",
                "--peers-listen=[::]:7443",
                "--peer-timeout=9",
                "--when-peer-lost=pause",
                "--key=/k"
            ]
        );
    }

    /// Proves: a release is mounted without a key; options for the other kind only are refused by name;
    /// several mirrors are passed on.
    #[test]
    fn releases() {
        let device = format!("hf+release:{}@https://m/", "5e".repeat(32));
        let release = |options: &str| wish(&format!("{device} /mnt -o {options}"));
        let options =
            "rw,mirror=https://a/,id=5e,mirror=http://b/,refresh=9,allow_stale,revocations=/r:/s,cache_mib=1";
        let arguments = release(options).expect("it makes sense").arguments;
        let text: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
        assert_eq!(
            text[2..],
            [
                "--mirror=https://a/",
                "--id=5e",
                "--mirror=http://b/",
                "--refresh=9",
                "--allow-stale",
                "--revocations=/r:/s",
                "--cache-mib=1",
                "--",
                &device,
                "/mnt"
            ]
        );
        for option in ["key=/k", "hard", "timeout=5", "map_user=a=1"] {
            let said = release(option).expect_err("it is refused").to_string();
            assert!(said.contains("not for releases"), "{said}");
        }
        for option in ["id=5e", "mirror=https://a/", "refresh=9", "allow_stale"] {
            let said = message(&format!("hf://h:1/f /mnt -o key=/k,{option}"));
            assert!(said.contains("releases"), "{said}");
        }
    }

    /// Proves: of opposite or repeated options, the last one is used.
    #[test]
    fn the_last_option_counts() {
        assert_eq!(arguments("key=/a,hard,ro,soft,rw,key=/b"), ["--key=/b"]);
        assert_eq!(arguments("rw,key=/a,noexec,exec,ro,ro"), ["--key=/a", "--read-only"]);
        assert_eq!(
            arguments("key=/a -o cache=/c -o cache_mib=1,cache=/d"),
            ["--key=/a", "--cache-mib=1", "--cache=/d"]
        );
    }

    /// Proves: an option that will not be obeyed is refused, and the message names it.
    #[test]
    fn what_is_not_done_is_refused() {
        for option in [
            "suid",
            "dev",
            "sync",
            "remount",
            "acknowledge_alarm",
            "uid=5",
            "nonsense",
            "ro=1",
            "nosuid=1",
            "k=v",
        ] {
            assert!(message(&format!("hf://h:1/f /mnt -o key=/k,{option}")).contains(option), "{option}");
        }
        assert!(message("hf://h:1/f /mnt -o rw").contains("key=FILE"));
        assert!(message("hf://h:1/f /mnt -o key").contains("key="));
        assert!(message("hf://h:1/f /mnt -o key=").contains("key="));
        for line in ["hf://h:1/f", "hf://h:1/f /mnt /other -o key=/k", "hf://h:1/f /mnt -o"] {
            assert!(message(line).contains("usage"), "{line}");
        }
        assert!(message("hf://h:1/f /mnt -o key=/k -q").contains("-q"));
    }

    /// Proves: the flags of mount(8) are parsed, alone or together; sloppy (-s) lets unknown options pass.
    #[test]
    fn flags_are_understood() {
        let wish = |line| wish(line).expect("it makes sense");
        let all = wish("-fnv hf://h:1/f /mnt -sokey=/k,nonsense -t holdfast");
        assert!(all.fake && all.verbose);
        assert_eq!(all.arguments, wish("hf://h:1/f /mnt -o key=/k").arguments);
        assert!(!wish("hf://h:1/f /mnt -n -o key=/k").fake);
    }

    /// Proves: the program is recognised by its name, in any directory.
    #[test]
    fn the_name_decides() {
        assert!(is_meant(OsStr::new("mount.holdfast")) && is_meant(OsStr::new("/sbin/mount.holdfast")));
        assert!(!is_meant(OsStr::new("holdfast")) && !is_meant(OsStr::new("/mount.holdfast/holdfast")));
    }

    /// Proves: `holdfast mount` understands the translated options, and checks their values.
    #[test]
    fn values_are_checked() {
        let run = |options: &str| {
            run(&["hf://h:1/f", "/mnt", "-f", "-o", options].map(OsString::from))
                .map_err(|failure| failure.to_string())
        };
        assert_eq!(run("key=/k,state=/s,cache=/c,cache_mib=5,timeout=7,allow_other,ro,noexec"), Ok(()));
        assert_eq!(run("key=/k,transfer=plain"), Ok(()));
        assert!(run("key=/k,transfer=fast").expect_err("no such way").contains("transfer"));
        assert!(run("key=/k,timeout=0").expect_err("out of range").contains("timeout"));
        assert!(run("key=/k,cache_mib=much").expect_err("no number").contains("cache-mib"));
    }
}
