//! What the tests of the least-privilege file system share.

pub mod stack;
