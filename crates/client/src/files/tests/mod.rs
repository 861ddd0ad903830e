//! Tests of the inode API on an in-memory file system.
