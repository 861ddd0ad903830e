//! The requests of the component `echo`.

use borsh::{BorshDeserialize, BorshSerialize};

/// A request to `echo`.
#[derive(BorshSerialize, BorshDeserialize, Clone, Debug)]
pub enum Question {
    Echo(Vec<u8>),
    WhoAmI,
    Crash(u8),
    Read { offset: u64, length: u32 },
    Write { offset: u64, bytes: Vec<u8> },
    Map,
    Touch { offset: u64 },
}
