//! The Holdfast client: signer, cache, views, write-back and the inode API.
