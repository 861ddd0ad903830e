//! Signed releases (the read-only paper): publish a tree once, mirror it anywhere, verify every byte.
//!
//! A release is a tree of the blocks of `holdfast_content` under one signed record. What serves it (a plain
//! web server, a bucket or `holdfast release serve`) holds no secret and is not trusted: clients check every
//! block against its digest, up to the record, and the record against the keys that the release's id stands
//! for.
//!
//! - [`publish`]: makes the tree of a release from a directory.
//! - [`open`]: a release as a client uses it; [`tree`]: its tree; [`blocks`]: its blocks, from mirrors.
//! - [`origin`]: the live file system that a release was made of, and that has its data.
//! - [`pull`]: a mirror of a release, brought up to date.
//! - [`pack`], [`index`]: files of blocks, and the location of each block.
//! - [`hints`]: which blocks a path needs.
//! - [`mount`]: a release as a tree for the kernel.
//! - [`image`]: a release as an image that the kernel mounts by itself.
//! - [`layout`]: the files of a release as they lie at a mirror.
//! - [`mirror`]: the sources of those files, whose content it does not judge.
//! - [`pull`]: a directory becomes a mirror; [`send`]: a prefix of a bucket does.
//! - [`serve`]: a web server for the files, which does not interpret them. [`gateway`]: pages for people who
//!   have only a browser.
//! - [`form`], [`signing`], [`keys`], [`record`], [`revocation`] (of a release), [`file_system`] (its
//!   revocation): what is signed and by which keys; [`accept`]: whether it is in force now. Pure: time is an
//!   argument, in seconds since 1970 ([`moment`]).
//! - [`trust`]: what a client remembers; [`admit`]: all checks before it uses a mirror's release.
//! - [`draft`]: signing by people on several machines; [`release_dir`]: the publisher's directory.
#![forbid(unsafe_code)]

pub mod accept;
pub mod admit;
pub mod blocks;
pub mod draft;
pub mod file_system;
pub mod folder;
pub mod form;
pub mod gateway;
pub mod hints;
pub mod image;
pub mod index;
pub mod keys;
pub mod layout;
pub mod mirror;
pub mod moment;
pub mod mount;
pub mod open;
pub mod origin;
pub mod pack;
pub mod publish;
pub mod pull;
pub mod record;
pub mod release_dir;
pub mod revocation;
pub mod send;
pub mod serve;
pub mod signing;
pub mod tree;
pub mod trust;
