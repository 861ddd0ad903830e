//! The stack with one enemy in it: for tests (`tests/red_team.rs`), never shipped. It is the host of `host/main.rs`,
//! but one of its components is hostile, as the instructions in this program's own bytes say. The same supervisor
//! starts it, in the same sandbox, with the same privileges and channels as the honest one. The shipped product has no
//! part in this: a compromised component is one that runs other code.
//!
//! Where a stack needs the component to come up at all, the first process of it is honest and the second, which is started
//! when the test has killed the first, is the enemy; the third is honest again, so that the test sees what is left.

mod attempts;
mod enemy;
#[path = "../host/main.rs"]
mod host;
#[path = "../../fuzz/src/mutate.rs"]
mod mutate;
mod roles;
#[path = "../../fuzz/src/samples.rs"]
mod samples;
mod serving;
mod stage;

use holdfast_components::{Context, Main, run_if_component};
use holdfast_stack::COMPONENTS;
use std::process::ExitCode;

/// A mark that the test finds in a copy of this program, and behind which it writes the instructions.
static ORDERS: [u8; 160] = {
    let mark = *b"holdfast red team, orders: ";
    let mut bytes = [0; 160];
    let mut at = 0;
    while at < mark.len() {
        bytes[at] = mark[at];
        at += 1;
    }
    bytes
};
/// The length of the mark in bytes.
const MARK_BYTES: usize = 27;

/// What the enemy is to do.
pub struct Orders {
    role: String,
    /// The name of the attack.
    pub attack: String,
    /// Enemies are the processes of this run from this number on, and below the other.
    hostile: std::ops::Range<u64>,
    /// The first block of a file of alice.
    pub victim: u64,
}

impl Orders {
    fn read() -> Orders {
        let bytes = std::hint::black_box(&ORDERS);
        let text: String = bytes[MARK_BYTES..].iter().take_while(|b| **b != 0).map(|b| *b as char).collect();
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
        let word = |at: usize| words.get(at).map_or(String::new(), |word| (*word).to_owned());
        Orders { role: word(0), attack: word(1), hostile: number(2)..number(3), victim: number(4) }
    }
}

fn honest(kind: &str) -> Main {
    COMPONENTS.iter().find(|(known, _)| *known == kind).expect("it is a component").1
}

/// Runs the honest component, or the enemy.
fn either(kind: &str, context: Context, enemy: fn(enemy::Enemy)) -> ExitCode {
    let orders = Orders::read();
    if orders.role != kind || !orders.hostile.contains(&context.run) {
        return honest(kind)(context);
    }
    enemy(enemy::Enemy::new(context, orders));
    // With an exit code of failure, so that another process is started.
    ExitCode::from(3)
}

const TABLE: &[(&str, Main)] = &[
    ("policy-manager", |context| honest("policy-manager")(context)),
    ("cache-manager", |context| either("cache-manager", context, roles::cache_manager)),
    ("disk-driver", |context| either("disk-driver", context, roles::disk_driver)),
    ("disk-formatter", |context| either("disk-formatter", context, roles::formatter)),
    ("fs-loader", |context| honest("fs-loader")(context)),
    ("fs-checker", |context| honest("fs-checker")(context)),
    ("fs-driver", |context| either("fs-driver", context, roles::fs_driver)),
    ("vfs", |context| either("vfs", context, roles::session)),
];

fn main() -> ExitCode {
    match run_if_component(TABLE) {
        Some(code) => code,
        None => host::main(),
    }
}
