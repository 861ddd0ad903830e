//! Programs that write while something is killed.

use super::{World, eventually, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that writes file after file, and notes each that `sync` has acknowledged.
pub struct Load {
    drafts: PathBuf,
    list: PathBuf,
    stop: PathBuf,
    child: Child,
}

impl Load {
    /// Starts writing files of so many random bytes in `target`.
    pub fn start(world: &World, target: &Path, bytes: u32) -> Load {
        let (drafts, list, stop) = (world.path("drafts"), world.path("acked"), world.path("stop"));
        fs::create_dir(&drafts).expect("a folder");
        let script = "i=0; while [ ! -e \"$4\" ]; do i=$((i+1)); head -c \"$5\" /dev/urandom > \"$1/$i\"; \
                      cp \"$1/$i\" \"$2/$i\" && sync \"$2/$i\" && echo $i >> \"$3\"; done";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "load"])
            .arg(&drafts)
            .arg(target)
            .arg(&list)
            .arg(&stop)
            .arg(bytes.to_string());
        let child = command.stderr(Stdio::null()).spawn().expect("a shell");
        Load { drafts, list, stop, child }
    }

    pub fn acked(&self) -> Vec<String> {
        fs::read_to_string(&self.list).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until more files are acknowledged, and returns how long that took.
    pub fn goes_on(&self, what: &str) -> Duration {
        let (start, before) = (Instant::now(), self.acked().len());
        eventually(what, || self.acked().len() > before + 2);
        start.elapsed()
    }

    pub fn end(&mut self) {
        fs::write(&self.stop, "").expect("written");
        self.child.wait().expect("it ends");
    }

    /// Compares every acknowledged file with that of the same name in `theirs`.
    pub fn compare(&self, theirs: &Path) {
        for name in self.acked() {
            run(Command::new("cmp").arg(self.drafts.join(&name)).arg(theirs.join(&name)));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = fs::write(&self.stop, "");
        let _ = self.child.kill();
    }
}
