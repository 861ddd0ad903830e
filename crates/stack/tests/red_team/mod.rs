//! The red team: each component of the stack as an enemy, which is a process that the real supervisor started in its
//! real sandbox, with the component's channels and rights, and which tries for each goal that it must not reach. The
//! table of attempts and outcomes is in `docs/proof.md`. Needs root, FUSE and dosfstools, as `tests/stack.rs`.

use crate::common::stack;

use stack::{Enemy, Running, aftermath, attacked, files, second, uncached};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

const MARK: &str = "<!-- the red team: HOLDFAST_BLESS=1 scripts/test only stack::red_team:: -->\n";
const DOCUMENT: &str = "../../docs/proof.md";
/// More memory than these attempts need, and less than an enemy could have made a component take.
const GROWTH_MAX: u64 = 96 << 20;
const FILES_GROWTH_MAX: usize = 700;

/// A goal: what only a component with the right to it may do.
const GOALS: [&str; 9] = [
    "read a file's block",
    "write or erase one",
    "change an owner or ACL",
    "get or change a region",
    "leave the sandbox",
    "speak as another",
    "learn owners or ACLs",
    "end, hang or fill others",
    "undo what was acknowledged",
];

/// The outcome of an attempt.
#[derive(Clone, PartialEq, Eq)]
enum Verdict {
    /// The goal was not reached.
    No,
    /// The goal was reached for as long as the enemy ran; once it was ended everything went on.
    WhileThere,
    /// The goal was reached; this is known, and the documents say so.
    Known(&'static str),
    /// The goal was reached.
    Reached(String),
}

impl Verdict {
    fn words(&self) -> String {
        match self {
            Verdict::No => "no".to_owned(),
            Verdict::WhileThere => "while it lives".to_owned(),
            Verdict::Known(words) => format!("**{words}**"),
            Verdict::Reached(words) => format!("REACHED: {words}"),
        }
    }
}

/// Not reached, if nothing was found.
fn unless(found: impl IntoIterator<Item = String>) -> Verdict {
    let found: Vec<String> = found.into_iter().collect();
    if found.is_empty() { Verdict::No } else { Verdict::Reached(found.join("; ")) }
}

#[derive(Default)]
struct Table(Vec<(&'static str, usize, &'static str, Verdict)>);

impl Table {
    fn put(&mut self, role: &'static str, goal: usize, attempt: &'static str, verdict: Verdict) {
        println!("{role}: {}: {attempt}: {}", GOALS[goal], verdict.words());
        self.0.push((role, goal, attempt, verdict));
    }

    fn markdown(&self) -> String {
        let mut text = format!("{MARK}| | {} |\n|---|{}\n", GOALS.join(" | "), "---|".repeat(GOALS.len()));
        let mut roles: Vec<&str> = Vec::new();
        for (role, ..) in &self.0 {
            if !roles.contains(role) {
                roles.push(role);
            }
        }
        for role in &roles {
            let cells = (0..GOALS.len()).map(|goal| {
                let of = |line: &&(&str, usize, &str, Verdict)| line.0 == *role && line.1 == goal;
                let lines: Vec<_> = self.0.iter().filter(of).collect();
                let worst = lines.iter().map(|line| &line.3).max_by_key(|verdict| match verdict {
                    Verdict::No => 0,
                    Verdict::WhileThere => 1,
                    Verdict::Known(_) => 2,
                    Verdict::Reached(_) => 3,
                });
                worst.map_or(String::new(), |worst| format!("{} ({})", worst.words(), lines.len()))
            });
            let _ = writeln!(text, "| {role} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        let _ = writeln!(text, "\n| enemy | goal | attempt | reached |\n|---|---|---|---|");
        for (role, goal, attempt, verdict) in &self.0 {
            let _ = writeln!(text, "| {role} | {} | {attempt} | {} |", GOALS[*goal], verdict.words());
        }
        text
    }
}

type Report = BTreeMap<String, u64>;

/// The sum of the report's counts under these names.
fn counted(report: &Report, names: &[&str]) -> Vec<String> {
    let count =
        |name: &&str| report.get(*name).filter(|count| **count > 0).map(|count| format!("{name} {count}"));
    names.iter().filter_map(count).collect()
}

/// The component whose place a role takes.
fn component(role: &str) -> &str {
    if role == "vfs" { "vfs-1" } else { role }
}

/// Starts an enemy in place of the honest component. Bob's VFS is an enemy from the beginning.
fn enemy(role: &'static str, attack: &'static str) -> Running {
    if role == "vfs" {
        return attacked(Enemy { role, attack, first: second() - 1, end: second() });
    }
    let mut running = attacked(Enemy { role, attack, first: second(), end: second() + 1 });
    // It serves until it is killed.
    fs::metadata(running.alice.join("SECRET")).expect("the stack is up");
    running.kill(role);
    running
}

/// Asserts that others go on undisturbed.
fn bystanders(running: &mut Running, role: &str, restarts_before: u64) -> Vec<String> {
    let mut wrong = running.altered();
    let (restarts, is_down) = running.others(component(role));
    if restarts > restarts_before {
        wrong.push(format!("{} ends of others", restarts - restarts_before));
    }
    if is_down {
        wrong.push("another is down".to_owned());
    }
    if running.words().contains("panicked") {
        wrong.push("the host panicked".to_owned());
    }
    wrong
}

/// Everything there is to ask of the monitor, PolicyMgr and neighbours, and thousands of random messages.
fn messages(table: &mut Table, role: &'static str) {
    let mut running = enemy(role, "messages");
    let (memory, open) = (running.memory(None), running.host_files());
    let report = running.report(component(role));
    let known = if role == "fs-driver" { &["owns"][..] } else { &[] };
    let put = |table: &mut Table, goal, attempt, names: &[&str]| {
        let names: Vec<&str> = names.iter().copied().filter(|name| !known.contains(name)).collect();
        assert!(names.iter().any(|name| report.contains_key(*name)), "{role}: {attempt}: {report:?}");
        table.put(role, goal, attempt, unless(counted(&report, &names)));
    };
    put(table, 0, "views of all regions, under every name that there could be", &["secrets-seen"]);
    if role != "disk-driver" {
        assert!(report["references"] > 0, "{report:?}");
        put(table, 0, "the block brought into memory, its region and its right reference", &["by-reference"]);
    }
    put(
        table,
        1,
        "writes by every reference there could be, erasure",
        &["writes", "writes-together", "erase", "erase-all"],
    );
    if role == "cache-manager" {
        put(
            table,
            1,
            "a transfer of the block into another's page, and of a page to the block",
            &["wrong-page"],
        );
    }
    if role != "disk-driver" {
        put(
            table,
            2,
            "nominate, accept, change ACLs, format, under every name",
            &["owners", "acls", "format"],
        );
        put(table, 6, "look, sizes, pages, places", &["looks", "sizes", "owns", "cache", "places"]);
    } else {
        put(table, 6, "places of blocks", &["places"]);
    }
    put(
        table,
        3,
        "make, assign, free, remove, give another ACL",
        &["create-region", "assign", "set-acl", "remove", "free"],
    );
    put(
        table,
        5,
        "aliases it does not have; forged and false credentials; proofs that do not follow; too many endings",
        &["names", "endings-over"],
    );
    if role == "vfs" {
        put(table, 1, "alice's file cut, grown, renamed, removed, replaced, claimed, dated", &["files"]);
    }
    let mut wrong: Vec<String> = report
        .iter()
        .filter(|(name, count)| name.starts_with("silent") && **count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    wrong.extend(bystanders(&mut running, role, 0));
    let grown = running.memory(None).saturating_sub(memory);
    if grown > GROWTH_MAX || running.host_files() > open + FILES_GROWTH_MAX {
        wrong.push(format!("the host grew by {grown} bytes, to {} files", running.host_files()));
    }
    table.put(role, 7, "thousands of malformed and mutated messages and packets", unless(wrong));
    table.put(
        role,
        8,
        "the same; then everything read and checked by honest programs",
        unless(aftermath(running)),
    );
}

/// Escapes from the sandbox, each tried by itself: the enemy's process ends with the attempt.
fn escapes(table: &mut Table, role: &'static str) {
    for attack in ["escape-file", "escape-network", "escape-process"] {
        let mut running = match role {
            "disk-formatter" => {
                let enemy = Enemy { role, attack, first: 1, end: second() + 1 };
                Running::start("format", tempfile::tempdir().expect("a directory"), Some((enemy, 0)))
            }
            role => enemy(role, attack),
        };
        // From the host's log: a successor may have ended in another way before the test looks.
        let ends = |running: &Running| -> Vec<String> {
            let named = format!("component=\"{}\" reason=", component(role));
            let words = running.words();
            let of_it = words.lines().filter(|line| line.contains(&named));
            of_it
                .filter(|line| line.contains("forbidden") || line.contains("lived="))
                .map(String::from)
                .collect()
        };
        running.until("an end", |running| !ends(running).is_empty());
        let found = ends(&running).into_iter().find(|end| end.contains("lived="));
        let attempt = match attack {
            "escape-file" => "opens a file",
            "escape-network" => "connects to a port",
            _ => "starts a program",
        };
        table.put(role, 4, attempt, unless(found));
    }
}

/// A component that is asked and does not answer, answers anything, or ends again and again.
fn ill_servers(table: &mut Table, role: &'static str) {
    let mut running = enemy(role, "silent");
    let path = running.alice.join("SECRET");
    let reader = std::thread::spawn(move || uncached(&path));
    std::thread::sleep(std::time::Duration::from_millis(300));
    running.kill(role);
    let read = reader.join().expect("ends");
    let mut wrong = bystanders(&mut running, role, 0);
    if read.as_ref().is_ok_and(|read| *read != files()["SECRET"]) {
        wrong.push("a wrong answer".to_owned());
    }
    let verdict = if wrong.is_empty() { Verdict::WhileThere } else { unless(wrong) };
    table.put(role, 7, "silence, holding requests", verdict);
    table.put(role, 8, "silence, holding requests", unless(aftermath(running)));

    let mut running = enemy(role, "nonsense");
    let memory = running.memory(Some("vfs-0"));
    let mut wrong = Vec::new();
    for round in 0..30 {
        for (name, expected) in files() {
            if uncached(&running.alice.join(name)).is_ok_and(|found| found != expected) {
                wrong.push(format!("{name} reads as something else"));
            }
        }
        let path = running.alice.join(format!("new {round}"));
        let _ = fs::write(&path, b"may fail").and_then(|()| fs::remove_file(&path));
        let _ = fs::read_dir(&running.alice).map(|names| names.take(1000).count());
    }
    let grown = running.memory(Some("vfs-0")).saturating_sub(memory);
    if grown > GROWTH_MAX {
        wrong.push(format!("a neighbour grew by {grown} bytes"));
    }
    running.kill(role);
    // Reading gives what an FSDriver says that a file has: that is known, and few of these answers say so.
    wrong.retain(|wrong| role != "fs-driver" || !wrong.contains("reads as"));
    table.put(
        role,
        8,
        "answers of no grammar, of another question, with other names: what is read meanwhile",
        unless(wrong),
    );
    // The kernel caches names and sizes for a second.
    running.until("what is right, once the enemy is gone", |running| running.altered().is_empty());
    let wrong = bystanders(&mut running, role, 0);
    let verdict = if wrong.is_empty() { Verdict::WhileThere } else { unless(wrong) };
    table.put(role, 7, "answers of no grammar, packets that nobody asked for, hundreds of files", verdict);
    table.put(role, 8, "the same, what is there afterwards", unless(aftermath(running)));

    // It ends whenever it is started, until it is started no more.
    let mut running = attacked(Enemy { role, attack: "crash", first: second(), end: u64::MAX });
    fs::metadata(running.alice.join("SECRET")).expect("the stack is up");
    assert!(uncached(&running.alice.join("third")).is_ok());
    // Its successors may all have ended before the test looks.
    running.end(role);
    running.until("the end of a loop", |running| running.component(role)["state"] == "down");
    let (_, is_down) = running.others(role);
    let wrong = is_down.then(|| "another is down with it".to_owned());
    let verdict =
        if wrong.is_none() { Verdict::Known("it stays down until the next mount") } else { unless(wrong) };
    table.put(role, 7, "a loop of crashes", verdict);
    table.put(role, 8, "a loop of crashes", unless(aftermath(running)));
}

/// A CacheMgr that gives references to other blocks, and says that it wrote what it did not.
fn swapping_cache(table: &mut Table) {
    let role = "cache-manager";
    let mut running = enemy(role, "swap");
    let (mut wrong, mut false_syncs) = (Vec::new(), Vec::new());
    for round in 0..20_u64 {
        for (name, expected) in files() {
            if uncached(&running.alice.join(name)).is_ok_and(|found| found != expected) {
                wrong.push(format!("{name} reads as something else"));
            }
        }
        let path = running.alice.join("written");
        let written = stack::content(50 + round as usize, 5000);
        if fs::write(&path, &written).is_ok() {
            let synced = fs::File::open(&path).and_then(|file| file.sync_all());
            if synced.is_ok() {
                false_syncs.push("a write was acknowledged as durable that was not on the disk".to_owned());
            }
            if uncached(&path).is_ok_and(|found| found != written) {
                wrong.push("what was written reads as something else".to_owned());
            }
        }
    }
    table.put(
        role,
        0,
        "references to alice's other blocks, under the right name: what she reads",
        unless(wrong),
    );
    table.put(role, 8, "says that it had blocks written, and had not: fsync", unless(false_syncs));
    running.kill(role);
    table.put(role, 7, "the same, who else ends", unless(bystanders(&mut running, role, 0)));
    table.put(role, 1, "references to her other blocks: where her writes go", unless(aftermath(running)));

    let mut running = enemy(role, "hoard");
    running.until("its end", |running| running.has_attacked(role));
    table.put(
        role,
        7,
        "all memory taken and given up, over and over",
        unless(bystanders(&mut running, role, 0)),
    );
    table.put(role, 8, "all memory taken and given up, over and over", unless(aftermath(running)));
}

/// A DiskDriver that says it moved blocks, and did not.
fn lying_driver(table: &mut Table) {
    let role = "disk-driver";
    let mut running = enemy(role, "lie");
    let mut false_syncs = Vec::new();
    let path = running.alice.join("written");
    for _ in 0..3 {
        let written = fs::write(&path, vec![7; 4000]);
        if written.is_ok() && fs::File::open(&path).and_then(|file| file.sync_all()).is_ok() {
            false_syncs.push("a write was acknowledged as durable that was not on the disk".to_owned());
        }
        let _ = fs::remove_file(&path);
    }
    let read = uncached(&running.alice.join("SECRET")).is_ok_and(|found| found != files()["SECRET"]);
    table.put(
        role,
        0,
        "says that it filled pages, and did not: what is read",
        unless(read.then(|| "wrong".to_owned())),
    );
    table.put(role, 8, "says that it wrote, and did not: fsync", unless(false_syncs));
    running.kill(role);
    table.put(role, 7, "the same, who else ends or hangs", unless(bystanders(&mut running, role, 0)));
    table.put(role, 8, "the same, what is there afterwards", unless(aftermath(running)));
}

/// What an FSDriver can do to files whose blocks it may not touch.
fn ill_files(table: &mut Table) {
    let role = "fs-driver";
    let mut running = enemy(role, "grow");
    running.until("its end", |running| {
        !running.last_end(role).is_empty() && running.component(role)["restarts"] == 2
    });
    let report = running.report(role);
    assert!(report.contains_key("grown"), "{report:?}");
    let attempt = "its region made larger than its profile says, to take the memory of all";
    table.put(role, 7, attempt, unless(counted(&report, &["grown"])));
    table.put(
        role,
        8,
        "its region made larger",
        unless(bystanders(&mut running, role, 0).into_iter().chain(aftermath(running))),
    );

    for (attack, goal, attempt) in [
        ("give-away", 2, "has alice's VFS nominate bob for her blocks, as given back"),
        ("lose", 1, "has alice's VFS give back blocks of a file that is there, as of one that was deleted"),
    ] {
        let mut running = enemy(role, attack);
        let _ = fs::remove_file(running.alice.join("anything"));
        running.kill(role);
        let words = running.words();
        assert!(words.contains("asked=1"), "alice's VFS asked what it may give back: {words}");
        let returned = words.contains("returned=1").then(|| "her VFS did".to_owned());
        let lost = aftermath(running);
        let verdict = match attack {
            "lose" if returned.is_some() && !lost.is_empty() => {
                Verdict::Known("files of its partition can be lost, erased, never read")
            }
            _ => unless(returned.into_iter().chain(lost)),
        };
        table.put(role, goal, attempt, verdict);
    }
}

/// What one session can do to another by using a lot.
fn greedy_session(table: &mut Table) {
    let role = "vfs";
    for (attack, attempt) in [
        ("names", "blocks nominated to thousands of long names"),
        ("acls", "hundreds of files, each with an ACL of its own, in memory"),
        ("nominations", "hundreds of files grown, no block accepted"),
    ] {
        let mut running = attacked(Enemy { role, attack, first: second() - 1, end: second() });
        let (host, open) = (running.memory(None), running.host_files());
        let policy = running.memory(Some("policy-manager"));
        running.until("its end", |running| running.has_attacked("vfs-1"));
        let mut wrong = bystanders(&mut running, role, 0);
        for (grown, who) in [
            (running.memory(None).saturating_sub(host), "the host"),
            (running.memory(Some("policy-manager")).saturating_sub(policy), "PolicyMgr"),
        ] {
            if grown > GROWTH_MAX {
                wrong.push(format!("{who} grew by {grown} bytes"));
            }
        }
        if running.host_files() > open + FILES_GROWTH_MAX {
            wrong.push(format!("the host has {} files open", running.host_files()));
        }
        let path = running.alice.join("still works");
        let expected = stack::content(90, 20_000);
        let written = fs::write(&path, &expected).and_then(|()| fs::File::open(&path)?.sync_all());
        match written.and_then(|()| uncached(&path)) {
            Ok(found) if found == expected => {}
            Ok(_) => wrong.push("she reads something else".to_owned()),
            Err(error) => wrong.push(format!("she cannot write: {error}")),
        }
        table.put(role, 7, attempt, unless(wrong));
        table.put(role, 8, attempt, unless(aftermath(running)));
    }
}

/// The administrator's component, after it has done its work.
fn formatter(table: &mut Table) {
    let role = "disk-formatter";
    let orders = Enemy { role, attack: "messages", first: 1, end: second() + 1 };
    let mut running = Running::start("format", tempfile::tempdir().expect("a directory"), Some((orders, 0)));
    for (name, bytes) in files() {
        fs::write(running.alice.join(name), bytes).expect("written");
    }
    fs::write(running.bob.join("bob's"), b"his").expect("written");
    fs::File::open(running.alice.join("SECRET")).expect("opens").sync_all().expect("durable");
    let report = running.report(role);
    assert!(report["labels"] >= 3, "there were files when it began: {report:?}");
    let attempt = "owner and ACL looked up, and words of refusals read, of each of the first 3,000 blocks";
    table.put(role, 6, attempt, unless(counted(&report, &["done", "told"])));
    table.put(role, 2, "nominate, accept, change ACLs of the same", unless(counted(&report, &["done"])));
    table.put(role, 1, "erase all by formatting", Verdict::Known("that is its work"));
    table.put(role, 8, "the same, what is there afterwards", unless(aftermath(running)));
}

/// Everything that a role tries.
fn played(role: &'static str) -> Table {
    let mut table = Table::default();
    if role == "disk-formatter" {
        formatter(&mut table);
    } else {
        messages(&mut table, role);
        if role != "vfs" {
            ill_servers(&mut table, role);
        }
        match role {
            "cache-manager" => swapping_cache(&mut table),
            "disk-driver" => lying_driver(&mut table),
            "fs-driver" => ill_files(&mut table),
            _ => greedy_session(&mut table),
        }
    }
    escapes(&mut table, role);
    let reached: Vec<_> = table.0.iter().filter(|line| matches!(line.3, Verdict::Reached(_))).collect();
    assert!(reached.is_empty(), "{}", table.markdown());
    table
}

/// Proves: what `docs/proof.md` says of each component and each goal.
fn proven(role: &'static str) {
    if is_blessing() {
        return;
    }
    let text = played(role).markdown();
    let is_about = |line: &&str| line.starts_with(&format!("| {role} |"));
    let document = fs::read_to_string(DOCUMENT).expect("the document");
    let (said, found): (Vec<_>, Vec<_>) =
        (document.lines().filter(is_about).collect(), text.lines().filter(is_about).collect());
    assert!(said == found, "{DOCUMENT} differs; HOLDFAST_BLESS=1 writes it anew:\n{text}");
}

#[test]
fn cache_manager() {
    proven("cache-manager");
}

#[test]
fn disk_driver() {
    proven("disk-driver");
}

#[test]
fn fs_driver() {
    proven("fs-driver");
}

#[test]
fn vfs() {
    proven("vfs");
}

#[test]
fn disk_formatter() {
    proven("disk-formatter");
}

fn is_blessing() -> bool {
    std::env::var_os("HOLDFAST_BLESS").is_some()
}

/// Writes the table of the document anew, if a variable says so.
#[test]
fn bless() {
    if !is_blessing() {
        return;
    }
    let roles = ["cache-manager", "disk-driver", "fs-driver", "vfs", "disk-formatter"];
    let table = Table(roles.into_iter().flat_map(|role| played(role).0).collect());
    let before = fs::read_to_string(DOCUMENT).expect("the document");
    let start = before.find(MARK).expect("the mark of the table");
    let end = before[start..].find("<!-- end -->").expect("its end") + start;
    let after = format!("{}{}", &before[..start], table.markdown()) + &before[end..];
    fs::write(DOCUMENT, after).expect("written");
}
