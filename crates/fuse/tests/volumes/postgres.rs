//! PostgreSQL on a protected volume whose exporter is killed under it.

use super::site::{self, Exporter, Kind, Mounted, Workspace, attempt, run};
use holdfast_testing::eventually;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where Debian keeps what is not on everybody's path.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// A server of a data directory.
struct Server {
    programs: PathBuf,
    data: PathBuf,
}

impl Server {
    fn find(data: &Path) -> Option<Server> {
        let newest = fs::read_dir(PROGRAMS).ok()?.filter_map(|entry| Some(entry.ok()?.path())).max()?;
        let is_there = attempt("id -u postgres", &[]).status.success();
        is_there.then(|| Server { programs: newest.join("bin"), data: data.to_owned() })
    }

    /// A command of a program, as the user postgres: PostgreSQL refuses root.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(self.programs.join(program)).current_dir("/");
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    fn path(&self) -> &str {
        self.data.to_str().expect("a plain path")
    }

    fn start(&self) {
        let path = self.path();
        let options = format!("-h '' -k {path} -c max_wal_size=64MB -c logging_collector=off");
        let log = self.data.join("said");
        let log = log.to_str().expect("a plain path");
        self.run("pg_ctl", &["-D", path, "-o", &options, "-l", log, "-w", "-t", "120", "start"]);
    }

    fn stop(&self) {
        self.run("pg_ctl", &["-D", self.path(), "-w", "-m", "fast", "stop"]);
    }

    /// The first process of the server.
    fn process(&self) -> PathBuf {
        let text = fs::read_to_string(self.data.join("postmaster.pid")).expect("it runs");
        Path::new("/proc").join(text.lines().next().expect("a line"))
    }

    fn ask(&self, question: &str) -> String {
        self.run("psql", &["-h", self.path(), "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-Atc", question])
    }

    fn load(&self) -> Child {
        let mut command = self.command("pgbench");
        command.args(["-h", self.path(), "-n", "-c", "4", "-j", "2", "-T", "600", "postgres"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("pgbench starts")
    }

    /// Every transaction is there whole or not at all, and indexes and tables are as they should be.
    #[track_caller]
    fn verify(&self, transactions: u64) {
        let count: u64 = self.ask("SELECT count(*) FROM pgbench_history").parse().expect("a number");
        assert!(count >= transactions, "{count} of {transactions} transactions");
        let sums = self.ask(
            "SELECT (SELECT sum(delta) FROM pgbench_history), (SELECT sum(abalance) FROM pgbench_accounts), \
             (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches)",
        );
        let sums: Vec<&str> = sums.split('|').collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
        self.ask(
            "SELECT bt_index_check(c.oid, true) FROM pg_class c JOIN pg_am a ON c.relam = a.oid \
             WHERE a.amname = 'btree' AND c.relkind = 'i'",
        );
        let bad = self.ask(
            "SELECT c.relname, v.msg FROM pg_class c, LATERAL verify_heapam(c.oid) v WHERE c.relkind = 'r'",
        );
        assert_eq!(bad, "");
    }
}

/// Proves: PostgreSQL under load recovers on a volume whose exporter was killed; every transaction that a client was
/// told of is there, balances add up, and its own checks find nothing.
#[test]
#[ignore = "long: scripts/soak volumes"]
fn soak_postgres() {
    let site = Workspace::new();
    let data = site.disk().join("postgres");
    let Some(server) = Server::find(&data).filter(|_| Kind::Ext4.is_possible()) else {
        eprintln!("not tested: PostgreSQL (Debian's) is not here");
        return;
    };
    Kind::Ext4.make_of(&site.image(), 512 << 20);
    site::protect(&site.image(), &site.log());
    let mut transactions = 0;
    for time in 0..3 {
        let exporter = Exporter::start(&site.image(), &site.log(), &site.at());
        let used = Mounted::new(Kind::Ext4, &site.exported(), &site.disk());
        if time == 0 {
            fs::create_dir(&data).expect("made");
            run("chown postgres:", &[&data]);
            server.run("initdb", &["-D", server.path(), "-A", "trust"]);
            server.start();
            server.run("pgbench", &["-h", server.path(), "-i", "-q", "-s", "2", "postgres"]);
            server.ask("CREATE EXTENSION amcheck");
        } else {
            server.start();
            server.verify(transactions);
        }
        let process = server.process();
        let mut load = server.load();
        let wanted = transactions + 300;
        eventually("transactions are made", || {
            // Who reads a row after its transaction ended was told of it.
            transactions = server.ask("SELECT count(*) FROM pgbench_history").parse().expect("a number");
            transactions >= wanted
        });
        exporter.kill();
        // At once, without a word to its disk, and all its processes; it may have given up by itself.
        let number = process.file_name().expect("a number").to_string_lossy().into_owned();
        attempt(&format!("kill -QUIT {number}"), &[]);
        eventually("the server is gone", || !process.exists());
        load.wait().expect("it ended with its server");
        drop(used);
    }
    let exporter = Exporter::start(&site.image(), &site.log(), &site.at());
    let used = Mounted::new(Kind::Ext4, &site.exported(), &site.disk());
    server.start();
    server.verify(transactions);
    server.stop();
    used.unmount();
    Kind::Ext4.check(&site.exported());
    exporter.detach();
}
