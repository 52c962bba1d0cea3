"""The stores. Each method is one transaction, within one organization unless it says otherwise."""
