//! Programs that write, and know what they were told is durable.

use super::site::run;
use holdfast_testing::eventually;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

/// Something that goes on until it is stopped, or fails, and counts what was acknowledged.
pub struct Going {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Going {
    fn start(mut step: impl FnMut(u64) -> bool + Send + 'static) -> Going {
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, ended) = (acknowledged.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(SeqCst) && step(count.load(SeqCst)) {
                count.fetch_add(1, SeqCst);
            }
        });
        Going { acknowledged, stop, thread }
    }

    /// Waits until so many were acknowledged.
    fn wait_for(&self, count: u64) {
        eventually("work is done", || {
            let is_done = self.acknowledged.load(SeqCst) >= count;
            assert!(is_done || !self.thread.is_finished(), "it failed early");
            is_done
        });
    }

    fn stop(self) -> u64 {
        self.stop.store(true, SeqCst);
        self.thread.join().expect("no panic");
        self.acknowledged.load(SeqCst)
    }
}

/// Files of all sizes, each synced with its directory before the next is begun.
pub struct Files {
    directory: PathBuf,
    count: u64,
}

fn content(number: u64) -> Vec<u8> {
    let length = 1 + number * number * 977 % 200_000;
    (0..length).map(|at| (at * 31 + number * 17 + at / 251) as u8).collect()
}

fn try_one(directory: &Path, number: u64) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut file = File::create(directory.join(number.to_string()))?;
    file.write_all(&content(number))?;
    file.sync_all()?;
    File::open(directory)?.sync_all()?;
    File::open(directory.parent().expect("it is below a mount"))?.sync_all()
}

impl Files {
    pub fn of(directory: &Path, count: u64) -> Files {
        Files { directory: directory.to_owned(), count }
    }

    pub fn write_one(directory: &Path, number: u64) {
        try_one(directory, number).expect("written");
    }

    pub fn write(directory: &Path, count: u64) -> Files {
        (0..count).for_each(|number| Files::write_one(directory, number));
        Files::of(directory, count)
    }

    pub fn write_on(directory: &Path) -> FilesGoing {
        let directory = directory.to_owned();
        let place = directory.clone();
        FilesGoing { directory, going: Going::start(move |number| try_one(&place, number).is_ok()) }
    }

    #[track_caller]
    pub fn verify(&self) {
        for number in 0..self.count {
            let path = self.directory.join(number.to_string());
            let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(found == content(number), "{} is not what was written", path.display());
        }
    }
}

/// Files being written.
pub struct FilesGoing {
    directory: PathBuf,
    going: Going,
}

impl FilesGoing {
    pub fn wait_for(&self, count: u64) {
        self.going.wait_for(count);
    }

    pub fn stop(self) -> Files {
        Files { directory: self.directory, count: self.going.stop() }
    }
}

/// An SQLite database into which rows go, each a transaction of its own.
pub struct Database {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Database {
    pub fn start(directory: &Path) -> Database {
        fs::create_dir_all(directory).expect("made");
        let mut child = Command::new("sqlite3")
            .arg(directory.join("rows.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sqlite3 starts");
        let mut asks = child.stdin.take().expect("its input");
        let answers = BufReader::new(child.stdout.take().expect("its output"));
        writeln!(
            asks,
            ".bail on\nPRAGMA synchronous=EXTRA;\nCREATE TABLE rows(number INTEGER PRIMARY KEY, content TEXT);"
        )
        .expect("told");
        Database { child, asks, answers }
    }

    /// Whether a row is in it for good.
    pub fn insert(&mut self, number: u64) -> bool {
        let asked = writeln!(
            self.asks,
            "INSERT INTO rows VALUES({number}, hex(randomblob(700)));\nSELECT 'row {number}';"
        );
        let mut answer = String::new();
        asked.is_ok()
            && self.answers.read_line(&mut answer).is_ok()
            && answer.trim_end() == format!("row {number}")
    }

    pub fn end(mut self) {
        drop(self.asks);
        let _ = self.child.wait();
    }

    pub fn write_on(directory: &Path) -> DatabaseGoing {
        let mut database = Some(Database::start(directory));
        DatabaseGoing(Going::start(move |number| {
            let goes_on = database.as_mut().is_some_and(|database| database.insert(number));
            if !goes_on && let Some(database) = database.take() {
                database.end();
            }
            goes_on
        }))
    }

    /// All rows that were acknowledged are in it, at most one more, and it is whole.
    #[track_caller]
    pub fn verify(directory: &Path, rows: u64) {
        let ask = |question: &str| {
            let output = Command::new("sqlite3").arg(directory.join("rows.db")).arg(question).output();
            let output = output.expect("sqlite3 runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("text").trim().to_owned()
        };
        assert_eq!(ask("PRAGMA integrity_check;"), "ok");
        let found: u64 = ask("SELECT count(*) FROM rows;").parse().expect("a number");
        assert!((rows..=rows + 1).contains(&found), "{found} rows of {rows}");
        assert_eq!(ask("SELECT max(number) FROM rows;"), (found - 1).to_string());
    }
}

/// A database being written.
pub struct DatabaseGoing(Going);

impl DatabaseGoing {
    pub fn wait_for(&self, count: u64) {
        self.0.wait_for(count);
    }

    pub fn stop(self) -> u64 {
        self.0.stop()
    }
}

/// A git repository that syncs what it commits.
pub struct Repository(PathBuf);

impl Repository {
    pub fn new(directory: &Path) -> Repository {
        run("git init -q", &[directory]);
        Repository(directory.to_owned())
    }

    fn git(&self, arguments: &str) -> String {
        let settings =
            "-c user.name=a -c user.email=a@b -c core.fsync=all -c core.fsyncMethod=fsync -c gc.auto=0";
        run(&format!("git {settings} -C {} {arguments}", self.0.display()), &[])
    }

    pub fn commit(&self, number: u64) {
        for file in 0..40 {
            fs::write(self.0.join(file.to_string()), content(number * 100 + file)).expect("written");
        }
        self.git("add .");
        self.git(&format!("commit -q -m commit-{number}"));
        // git does not sync directories that it made.
        run("sync -f", &[&self.0]);
    }

    #[track_caller]
    pub fn verify(&self, commits: u64) {
        self.git("fsck --strict --full");
        assert_eq!(self.git("log --format=%s").lines().next(), Some(&*format!("commit-{commits}")));
        self.git("diff --quiet HEAD");
    }
}
