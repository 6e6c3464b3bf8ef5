//! draftree
