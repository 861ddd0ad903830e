//! The Holdfast server: drives the block store and the consistency machine.
