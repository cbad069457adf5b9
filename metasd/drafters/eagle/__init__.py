"""EAGLE heads: white-box drafters that read the target's hidden states."""
