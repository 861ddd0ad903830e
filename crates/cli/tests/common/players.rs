//! Processes that read and write registers ([`holdfast_exercise::registers`]), each on a mount of its own, and the
//! check of their histories.

use super::{World, eventually};
use holdfast_exercise::registers;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The number of registers.
pub const REGISTERS: u32 = 3;
/// The variable with the directory, the number of the writer, the file that ends it, and the history, for a process
/// that plays.
const PLAYED: &str = "HOLDFAST_PLAYED";

/// A process that reads and writes registers and notes each call. It is a process of its own because it waits for
/// servers that a test starts.
pub struct Player {
    history: PathBuf,
    child: Child,
}

impl Player {
    /// Starts a player in `directory`, which ends when there is a file `stop`.
    pub fn start(world: &World, directory: &Path, writer: u64, stop: &Path) -> Player {
        let history = world.path(&format!("history-{writer}"));
        let number = PathBuf::from(writer.to_string());
        let parameters =
            std::env::join_paths([directory, &number, stop, &history]).expect("no colon in them");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "--ignored", "--nocapture", "common::players::play_in_this_process"])
            .env(PLAYED, parameters);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        Player { history, child }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "tests with players run it, and say where"]
fn play_in_this_process() {
    let parameters = std::env::var_os(PLAYED).expect("where to play");
    let parameters: Vec<PathBuf> = std::env::split_paths(&parameters).collect();
    let [directory, writer, stop, history] = &parameters[..] else { panic!("{parameters:?}") };
    let writer = writer.to_str().and_then(|writer| writer.parse().ok()).expect("a number");
    let calls = registers::play(directory, REGISTERS, writer, stop, history).expect("played");
    assert!(calls > 0);
}

/// Ends the players once they have played a while, and checks that their histories are linearizable.
///
/// # Errors
/// The calls that fit no order, in words.
pub fn check(players: &mut [Player], stop: &Path) -> Result<(), String> {
    let played_so_far = || {
        let texts = players.iter().map(|player| std::fs::read_to_string(&player.history).unwrap_or_default());
        texts.map(|text| text.lines().filter(|line| !line.ends_with('-')).count()).sum::<usize>()
    };
    eventually("they have played a while", || played_so_far() > 150);
    std::fs::write(stop, "").expect("written");
    for player in players.iter_mut() {
        if !player.child.wait().expect("it ends").success() {
            return Err(format!("who noted {} failed", player.history.display()));
        }
    }
    let histories: Vec<_> =
        players.iter().map(|player| registers::load(&player.history).expect("noted")).collect();
    let sum = |is: fn(&registers::Call) -> bool| histories.iter().flatten().filter(|call| is(call)).count();
    let failed = sum(|call| call.ended_ns.is_none());
    let longest = histories.iter().flatten().filter_map(|call| Some(call.ended_ns? - call.begun_ns)).max();
    let longest = longest.unwrap_or_default() as f64 / 1e9;
    eprintln!("{} calls, {failed} of them failed, the longest took {longest:.1} s", sum(|_| true));
    registers::check(&histories).map_err(|found| found.to_string())
}
