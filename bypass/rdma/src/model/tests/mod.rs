//! Each rule of the model by a test.
