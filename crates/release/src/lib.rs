//! Signed releases (the read-only paper): publish a tree once, mirror it anywhere, verify every byte.
//!
//! A release is a tree of the blocks of `holdfast_content` under one signed record. Whoever serves it, a plain web
//! server, a bucket or `holdfast serve`, holds no secret and is not trusted; clients check every block against its
//! digest, up to the record, and the record against the keys that the release's id stands for.
//!
//! - [`layout`]: the files of a release as they lie at a mirror.
//! - [`mirror`]: where those files come from; decides nothing about what is in them.
//! - [`serve`]: a web server for them; understands nothing of them.
#![forbid(unsafe_code)]

pub mod folder;
pub mod layout;
pub mod mirror;
pub mod serve;
