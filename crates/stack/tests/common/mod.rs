//! Shared by the tests of the least-privilege file system.

pub mod stack;
