//! Tests of the inode API on an in-memory file system ([`memory`]): against a reference model ([`model`]),
//! and for single scenarios. `docs/semantics.md` names the scenarios that test its paragraphs.

mod appending;
mod conflict_copies;
mod departures;
mod failures;
mod gather;
mod locks;
mod memory;
mod model;
mod orphans;
mod parallel;
mod program_rules;
mod reference;
mod regressions;
mod semantics;
mod sharing;
mod state;
mod tools;
mod write_back;

use super::*;
use memory::{Client, World};
