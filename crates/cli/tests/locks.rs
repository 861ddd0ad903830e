//! flock(2) and fcntl(2) locks across real mounts, through the programs that people lock with.

use crate::common;

use common::{World, eventually, run, text};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Locks a file until this process is killed; returns once it has the lock.
fn hold(how: &str, file: &Path) -> Child {
    let mut child = Command::new("flock")
        .arg(how)
        .arg(file)
        .args(["sh", "-c", "echo locked; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock runs");
    let mut line = String::new();
    let out = child.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("it says so");
    assert_eq!(line, "locked\n");
    child
}

fn end(mut child: Child) {
    // The lock belongs to the open file description, which the child of flock(1) shares.
    let children = Command::new("pkill").args(["-KILL", "-P", &child.id().to_string()]).output();
    children.expect("pkill runs");
    let _ = child.kill();
    child.wait().expect("it ends");
}

fn can_lock(how: &str, file: &Path) -> bool {
    Command::new("flock").args(["--nonblock", how]).arg(file).arg("true").status().expect("it runs").success()
}

/// A lock that a program holds on one machine keeps those of others out, until it is given up or the program dies.
/// Shared locks are held together, a program that waits gets the lock, and one that is killed while it waits leaves
/// nothing behind.
#[test]
fn a_lock_holds_across_mounts() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let (mine, theirs) = (anna.join("team/file"), ben.join("team/file"));
    fs::write(&mine, "").expect("written");
    let holder = hold("-x", &mine);
    assert!(!can_lock("-x", &theirs) && !can_lock("-s", &theirs) && !can_lock("-x", &mine));
    assert!(world.status("anna").contains("1 lock"), "{}", world.status("anna"));
    let mut waiter = Command::new("flock").arg(&theirs).arg("true").spawn().expect("it runs");
    let killed = Command::new("flock").arg(&theirs).args(["sleep", "1000"]).spawn().expect("it runs");
    let timed =
        Command::new("flock").args(["--timeout", "1"]).arg(&theirs).arg("true").status().expect("it runs");
    assert!(!timed.success(), "a timer, which it catches, ends its wait");
    assert!(waiter.try_wait().expect("a child").is_none(), "it waits");
    end(killed);
    end(holder);
    assert!(waiter.wait().expect("it ends").success());
    // The kernel gives up the lock of a closed file asynchronously.
    eventually("it is free", || can_lock("-x", &mine));
    eventually("it is free", || can_lock("-x", &theirs));
    let shared = hold("-s", &mine);
    assert!(!can_lock("-x", &theirs) && can_lock("-s", &theirs));
    end(shared);

    // A user who may only read a file may hold a shared lock of it, but not keep its writers out.
    fs::write(anna.join("anna/own"), "").expect("written");
    assert!(can_lock("-s", &ben.join("anna/own")) && !can_lock("-x", &ben.join("anna/own")));
    eventually("it is free", || can_lock("-x", &anna.join("anna/own")));
}

/// F_GETLK returns the process that holds a conflicting lock if it runs on this machine, and 0 if it does not.
#[test]
fn who_is_in_the_way() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    fs::write(anna.join("team/file"), "0123456789").expect("written");
    const HOLD: &str = "import fcntl, sys, time
file = open(sys.argv[1], 'r+')
fcntl.lockf(file, fcntl.LOCK_EX, 6, 2)
fcntl.lockf(file, fcntl.LOCK_UN, 2, 6)
print('locked', flush=True)
time.sleep(1000)";
    const ASK: &str = "import fcntl, struct, sys
form = 'hhqqi4x'
told = fcntl.fcntl(open(sys.argv[1], 'r+'), fcntl.F_GETLK, struct.pack(form, fcntl.F_WRLCK, 0, 0, 0, 0))
kind, whence, start, length, process = struct.unpack(form, told)
print(kind == fcntl.F_UNLCK, start, length, process)";
    let ask = |file: &Path| run(Command::new("python3").args(["-c", ASK]).arg(file));
    assert!(ask(&anna.join("team/file")).starts_with("True"));
    let mut holder = Command::new("python3");
    holder.args(["-c", HOLD]).arg(anna.join("team/file")).stdout(Stdio::piped());
    let mut holder = holder.spawn().expect("python3 runs");
    let mut line = String::new();
    let out = holder.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("it says so");
    assert_eq!(ask(&anna.join("team/file")).trim(), format!("False 2 4 {}", holder.id()));
    assert_eq!(ask(&ben.join("team/file")).trim(), "False 2 4 0");
    holder.kill().expect("it runs");
    holder.wait().expect("it ends");
    eventually("it is free", || ask(&anna.join("team/file")).starts_with("True"));
}

/// A program that closes a file, and opens and locks it again at once, gets the lock and keeps it: the end of its
/// former descriptor, which the kernel reports later, does not free it. What is written before makes that end slow.
#[test]
fn locked_again_at_once() {
    const AGAIN: &str = "import fcntl, os, sys
for number in range(60):
    for take in (fcntl.lockf, fcntl.flock):
        file = open(sys.argv[1], 'r+')
        take(file, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            try:
                take(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os._exit(0)
            os._exit(1)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f'{take.__name__} {number}: nobody holds it')
        os.write(file.fileno(), b'x' * 100000)
        file.close()";
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/file"), "").expect("written");
    run(Command::new("python3").args(["-c", AGAIN]).arg(anna.join("team/file")));
}

/// Programs on two machines that increment a counter under a lock lose no increment.
#[test]
fn locked_counting() {
    let mut world = World::new(&["anna", "ben"]);
    let mounts = [world.mount("anna"), world.mount("ben")];
    fs::write(mounts[0].join("team/counter"), "0\n").expect("written");
    let script = r#"
        exec 9<> team/counter
        for i in $(seq 40); do
            flock 9
            read count < team/counter
            echo $((count + 1)) > /proc/self/fd/9
            flock -u 9
        done
    "#;
    let counting: Vec<Child> = [0, 0, 1, 1]
        .iter()
        .map(|at| {
            Command::new("sh").args(["-euc", script]).current_dir(&mounts[*at]).spawn().expect("it runs")
        })
        .collect();
    for mut child in counting {
        assert!(child.wait().expect("it ends").success());
    }
    for mount in &mounts {
        assert_eq!(fs::read_to_string(mount.join("team/counter")).expect("read"), "160\n");
    }
}

/// SQLite databases accept writers on two machines at once: no row is lost, and the database stays whole.
#[test]
fn sqlite_with_writers_on_two_mounts() {
    let mut world = World::new(&["anna", "ben"]);
    let mounts = [world.mount("anna"), world.mount("ben")];
    let sqlite = |at: usize| {
        let mut command = Command::new("sqlite3");
        command.args(["-cmd", ".timeout 60000", "team/data.db"]).current_dir(&mounts[at]);
        command
    };
    run(sqlite(0).arg("CREATE TABLE t (who TEXT, n INTEGER, UNIQUE (who, n));"));
    let writing: Vec<Child> = [0, 1]
        .iter()
        .map(|at| {
            let rows = (0..25).map(|n| format!("INSERT INTO t VALUES ('w{at}', {n});"));
            sqlite(*at).arg(rows.collect::<String>()).stderr(Stdio::piped()).spawn().expect("it runs")
        })
        .collect();
    for child in writing {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", text(&output));
    }
    for at in [0, 1] {
        let query = "SELECT who, count(*), sum(n) FROM t GROUP BY who ORDER BY who; PRAGMA integrity_check;";
        assert_eq!(run(sqlite(at).arg(query)), "w0|25|300\nw1|25|300\nok\n");
    }
}

/// A server that is killed and starts again forgets no lock: its holder keeps it, others are refused, and after the
/// grace period locks are granted again.
#[test]
fn locks_outlive_the_server() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    for name in ["held", "free"] {
        fs::write(anna.join("team").join(name), "").expect("written");
    }
    let holder = hold("-x", &anna.join("team/held"));
    world.kill_server();
    world.start_server();
    // Nothing is granted before the holders of locks had time to claim them.
    assert!(can_lock("-x", &ben.join("team/free")));
    assert!(!can_lock("-x", &ben.join("team/held")));
    end(holder);
    eventually("the lock is free", || can_lock("-x", &ben.join("team/held")));
    // A server that ended in order, with no lock held, has no grace period at its next start.
    world.stop_server();
    assert!(!world.data().join("locks-held").exists());
}

/// More programs can wait for a lock than there are threads that answer the kernel.
#[test]
fn many_wait() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let file = anna.join("team/file");
    fs::write(&file, "").expect("written");
    let holder = hold("-x", &file);
    let waiting: Vec<Child> =
        (0..120).map(|_| Command::new("flock").arg(&file).arg("true").spawn().expect("it runs")).collect();
    let has_opened = |process: &Child| {
        let open = fs::read_dir(format!("/proc/{}/fd", process.id())).expect("it waits").flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == file)
    };
    eventually("all are about to wait", || waiting.iter().all(has_opened));
    assert_eq!(fs::read_to_string(&file).expect("others are answered"), "");
    end(holder);
    for mut child in waiting {
        assert!(child.wait().expect("it ends").success());
    }
}

/// With --local-locks the server is not asked, and locks count on one machine only.
#[test]
fn local_locks() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount_with("anna", &["--local-locks"]), world.mount("ben"));
    fs::write(anna.join("team/file"), "").expect("written");
    let holder = hold("-x", &anna.join("team/file"));
    assert!(!can_lock("-x", &anna.join("team/file")));
    assert!(can_lock("-x", &ben.join("team/file")));
    end(holder);
}

/// A machine that dies with a lock keeps others out for the term of its lease and no longer. What it had made durable
/// under the lock is there for the next holder, and the machine can mount again at once.
#[test]
fn locks_of_a_killed_mount_run_out() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let (mine, theirs) = (anna.join("team/file"), ben.join("team/file"));
    fs::write(&mine, "before").expect("written");
    let holder = hold("-x", &mine);
    fs::write(&mine, "under the lock").expect("written");
    let process = world.mount_process("anna").expect("a process serves it");
    run(Command::new("kill").args(["-KILL", &process.to_string()]));
    assert!(!can_lock("-x", &theirs), "it may come back");
    let waiter = Command::new("flock").arg(&theirs).arg("cat").arg(&theirs).output().expect("it runs");
    assert_eq!(text(&waiter), "under the lock");
    end(holder);
    eventually("the dead mount is gone", || !common::is_mounted(&anna));
    let again = world.mount_at("anna", "again", &[]).join("team/file");
    assert_eq!(fs::read_to_string(&again).expect("read"), "under the lock");
    assert!(can_lock("-x", &again) && can_lock("-x", &theirs));
}
