"""Who belongs to a group, who may speak in it, and the records that change it or abandon missing messages."""
