//! Kernel requests to the inode API and back.
