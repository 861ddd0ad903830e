//! Tests of the inode API on an in-memory file system ([`memory`]): against a reference model ([`model`]) and
//! scenario by scenario. `docs/semantics.md` names the scenarios that stand for its paragraphs.

mod appending;
mod departures;
mod failures;
mod gate;
mod gather;
mod kept;
mod locks;
mod memory;
mod model;
mod nameless;
mod parallel;
mod reference;
mod regressions;
mod semantics;
mod sharing;
mod state;
mod tools;
mod write_back;

use super::*;
use memory::{Client, World};
